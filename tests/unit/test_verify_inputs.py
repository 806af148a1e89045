"""Random inputs of `farm verify`, and the order of its checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.verification.compare import Verification
from farm.errors import UsageError
from farm.store.memory import MemoryStore
from farm.verify.layers import verify_on_cpu
from farm.verify.network import network_inputs
from tests.bundle_samples import build, result

FIXED, OPEN = Tensor("x", "float32", (4, 8)), Tensor("y", "float32", ("N", 8))


def test_a_network_that_fixes_its_batch_takes_no_other() -> None:
    assert [len(each) for given in (None, 4) for each in network_inputs([FIXED], given, 0)] == [4, 4]
    with pytest.raises(UsageError, match="--batch 3: the network's inputs fix the batch at 4: leave --batch out"):
        network_inputs([FIXED], 3, 0)


def test_a_network_takes_any_batch_if_one_of_its_inputs_leaves_it_open() -> None:
    assert [len(each) for each in network_inputs([FIXED, OPEN], 3, 0)] == [4, 3]
    assert [len(each) for each in network_inputs([OPEN], None, 0)] == [2]


def test_each_layer_is_verified_from_the_oldest_architecture_on_whatever_the_order_of_its_builds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Verification(1, 1, 1, 0.0, 0.0)
    monkeypatch.setattr("farm.verify.layers._verify_kernels", lambda *_: (right, ""))
    names = ("conv2", "conv2", "conv1", "conv1")
    builds = [replace(build(number, name), weights=f"{number}") for number, name in enumerate(names)]
    archs = ("sm_90", "sm_75", "sm_75", "sm_90")
    checks = verify_on_cpu(MemoryStore(), builds, [result(number, arch) for number, arch in enumerate(archs)])
    assert [(check.layer, check.archs) for check in checks] == [
        (name, (arch,)) for name in ("conv2", "conv1") for arch in ("sm_75", "sm_90")
    ]
