"""Max pools that a layer's kernel computes, from the model to machine code in the emulator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cli.main import run
from codegen.assemble import assemble
from codegen.data_types import from_float32, to_float32
from codegen.machine.assembler import DirectAssembler, make_skeleton
from codegen.networks import alexnet_cifar10, write_network
from codegen.onnx.checkpoint import read_checkpoint
from codegen.operators import stream_count
from codegen.rewrite import rewrite
from codegen.spec import unpooled
from codegen.template import Template
from codegen.tiling import Part
from codegen.toolchain import find_toolchain
from codegen.verify import random_input, verify_layer
from farm.api import Farm
from farm.jobs import BuildOptions, Status
from tests.templates import shared_template
from tests.toolchain.operator_case import Case
from tests.toolchain.operator_run import half_of_the_weights, template_of
from tests.toolchain.operator_run import run as run_case
from tests.toolchain.pool_cases import POOL_CASES

ARCH = "sm_90"
DIRECT = ("pool", "pool, several images a block", "float16 pool, column pairs, added up in float16", "bfloat16 pool")


def largest(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each 2x2, two apart; NaN where one of them is."""
    height, width = (size // 2 * 2 for size in values.shape[2:])
    windows = values[:, :, :height, :width].reshape(*values.shape[:2], height // 2, 2, width // 2, 2)
    return np.asarray(windows.max(axis=(3, 5)), np.float32)


SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 3e4)


@settings(max_examples=len(POOL_CASES) * 2)
@given(st.sampled_from(list(POOL_CASES)), st.integers(0, 2**16), st.booleans())
def test_a_layer_with_its_pool_gives_the_very_bits_of_the_layer_and_a_pool(name: str, seed: int, special: bool) -> None:
    case = POOL_CASES[name]
    x = to_float32(random_input(case.spec, case.batch, seed), case.spec.data_type)
    if special:
        np.put(x, np.random.default_rng(seed).choice(x.size, len(SPECIAL), replace=False), SPECIAL)
    x = from_float32(x, case.spec.data_type)
    weights = half_of_the_weights(case.spec)
    apart: Case = replace(case, spec=unpooled(case.spec))
    both = [run_case([rewrite(template_of(each), weights)], each, x) for each in (case, apart)]
    pooled, whole = (to_float32(np.ascontiguousarray(each), case.spec.data_type) for each in both)
    np.testing.assert_array_equal(pooled, largest(whole))


def template_for(name: str) -> Template:
    case = POOL_CASES[name]
    return shared_template(case.spec, case.tiling, "compute_80")


@pytest.mark.parametrize("name", DIRECT)
def test_it_is_assembled_without_ptxas(name: str) -> None:
    case, template, toolchain = POOL_CASES[name], template_for(name), find_toolchain()
    weights, whole = half_of_the_weights(case.spec), Part(0, stream_count(case.spec, case.tiling))
    skeleton = make_skeleton(template, ARCH, toolchain)
    made = DirectAssembler.of(template, skeleton.data, ARCH).assemble(weights, whole)
    by_ptxas = assemble(rewrite(template, weights).ptx, ARCH, toolchain)
    for cubin in (made, by_ptxas):
        found = verify_layer(template, weights, [whole], cubins=[cubin.data], batch=case.batch)
        assert found.ok, found.message


def test_a_network_whose_layers_compute_its_pools_computes_what_onnxruntime_does(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_network(tmp_path / "net.onnx", alexnet_cifar10(0.9, 0))
    [job] = farm_of_commands.compile(
        [read_checkpoint(tmp_path / "net.onnx")], BuildOptions((ARCH,), batch=64, assembler="direct")
    )
    assert job.status is Status.SUCCEEDED, job.reason
    assert run(["verify", job.id, "--machine"]) == 0
    assert run(["verify", job.id, "--network", "--batch", "2"]) == 0
    assert run(["fetch", job.id, "-o", str(tmp_path / "bundle")]) == 0
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert [layer["folded"][-1] for layer in manifest["layers"][:3]] == [
        "MaxPool pool2",
        "MaxPool pool5",
        "MaxPool pool8",
    ]
    capsys.readouterr()
    assert run(["bundle", "show", str(tmp_path / "bundle")]) == 0
    assert "MaxPool" not in capsys.readouterr().out
    steps = [
        line for line in (tmp_path / "bundle" / "network.plan").read_text().splitlines() if line.startswith("run ")
    ]
    assert len(steps) == 4
