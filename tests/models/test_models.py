"""Whole networks: which layers are compiled and which are not and why, and that those that are compute the right thing.

0.9 of the weights are zero; `make models` runs 0.8 and 0.95 too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from codegen.model_zoo import NETWORKS
from tests.models.whole_networks import one_of_each_kind, planned, verified

TOO_LARGE = (
    r"its code would be \d+ MB, \d+ bytes a non-zero weight, and the limit is 16 MB: "
    r"raise it with --max-code-size \d+MB, or prune the layer further"
)


@dataclass(frozen=True)
class Expected:
    """The expected plan of a network."""

    operators: Mapping[str, int]
    """Layers that are compiled."""
    templates: int
    """Most templates that nvcc makes: one a shape, if the layers of a shape are pruned alike."""
    skipped: tuple[str, ...] = ()
    """Layers that are not compiled, all for one reason."""


EXPECTED = {
    "lenet5": Expected({"conv2d": 2, "linear": 2}, 4),
    "alexnet_cifar10": Expected({"conv2d": 3, "linear": 1}, 4),
    "resnet18": Expected({"conv2d": 20, "linear": 1}, 16),
    "resnet34": Expected({"conv2d": 36, "linear": 1}, 16),
    "resnet50": Expected({"conv2d": 53, "linear": 1}, 25),
    "vgg16": Expected({"conv2d": 13, "linear": 1}, 13, ("fc6", "fc7")),  # three layers differ from others by a pool
    "mobilenet_v2": Expected({"conv2d": 52, "linear": 1}, 31),
    "densenet121": Expected({"conv2d": 120, "linear": 1}, 67),
    "efficientnet_b0": Expected({"conv2d": 81, "linear": 1}, 47),
    "unet": Expected({"conv2d": 19, "conv_transpose2d": 4}, 23),
    "mlp": Expected({"linear": 4}, 4),
    "feed_forward": Expected({"linear": 2}, 2),
}
SPARSER = {("vgg16", 0.95): Expected({"conv2d": 13, "linear": 2}, 14, ("fc6",))}
"""Networks whose compiled layers depend on the sparsity: a million non-zeros are near the largest allowed code."""
SAMPLED = {"resnet34", "densenet121", "efficientnet_b0"}
"""Networks of many layers alike: one layer of each kind is verified; `make models` verifies them all."""


def test_every_network_is_expected_to_do_something() -> None:
    assert set(EXPECTED) == set(NETWORKS)


def test_every_layer_of_a_network_is_compiled_and_right_or_skipped_with_its_reason(
    network: str, sparsity: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    expected = SPARSER.get((network, sparsity), EXPECTED[network])
    plan = planned(network, sparsity, tmp_path)
    assert plan.operators() == expected.operators
    assert [layer.name for layer in plan.skipped] == list(expected.skipped)
    assert [layer for layer in plan.skipped if not re.fullmatch(TOO_LARGE, layer.reason)] == []
    assert len(plan.template_keys()) <= expected.templates
    every = network not in SAMPLED or request.config.getoption("--every-sparsity")
    found = verified(plan if every else one_of_each_kind(plan))
    assert {name: each.message for name, each in found.items() if not each.ok} == {}
    assert all(each.blocks_run and each.outputs_checked for each in found.values())
