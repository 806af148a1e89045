"""Max pools that a layer's kernel computes, from the model to machine code in the emulator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto

from cli.main import run
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.layer_spec import Conv2d, Linear, MaxPool, unpooled
from codegen.ir.tiling import Part
from codegen.kernels import stream_count
from codegen.model_zoo import alexnet_cifar10, write_network
from codegen.model_zoo.builder import NetworkBuilder
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from codegen.verification.compare import random_input
from farm.api import Farm
from farm.jobs.model import BuildOptions, Status
from tests.bundle_samples import validator
from tests.templates import shared_template, verify_random_run
from tests.toolchain.operator_case import Case
from tests.toolchain.operator_run import half_of_the_weights, template_of
from tests.toolchain.operator_run import run as run_case
from tests.toolchain.pool_cases import POOL_CASES

ARCH = "sm_90"
DIRECT = (
    "pool",
    "pool, several images a block",
    "float16 pool, column pairs, added up in float16",
    "bfloat16 pool",
    "wide pool",
    "wide pool, an odd map, padding at all sides",
    "wide pool, several images a block",
    "wide pool, two rows a thread",
    "wide pool, two rows a thread, an odd map, padding at all sides",
    "float16 wide pool, 1 rows a thread, added up in float32",
    "float16 wide pool, 2 rows a thread, added up in float16",
    "bfloat16 wide pool",
)


def largest(values: NDArray[np.float32], pool: MaxPool) -> NDArray[np.float32]:
    """The largest value of each window, two apart; NaN where one of its values is."""
    top, left, bottom, right = pool.padding
    beside = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(values, beside, constant_values=np.float32(-np.inf))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (pool.window, pool.window), (2, 3))
    return np.asarray(windows[:, :, ::2, ::2].max(axis=(4, 5)), np.float32)


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
    assert isinstance(case.spec, Conv2d)
    assert case.spec.pool
    both = [run_case([rewrite(template_of(each), weights)], each, x) for each in (case, apart)]
    pooled, whole = (to_float32(np.ascontiguousarray(each), case.spec.data_type) for each in both)
    np.testing.assert_array_equal(pooled, largest(whole, case.spec.pool))


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
        found = verify_random_run(template, weights, [whole], cubins=[cubin.data], batch=case.batch)
        assert found.ok, found.message


def stem() -> ModelProto:
    """Begins as a ResNet does."""
    net = NetworkBuilder(0.9, seed=0)
    x = net.relu(net.conv("conv1", "input", Conv2d(3, 64, 64, 16, 7, 7, (2, 2), (3, 3, 3, 3))))
    x = net.conv("conv2", net.max_pool(x, 3, 2, padding=1), Conv2d(16, 16, 16, 8, 3, 3))
    net.gemm("fc", net.average(x), Linear(8, 10))
    return net.model("stem", (3, 64, 64), (10,))


def right_bundle(model: ModelProto, farm: Farm, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The manifest of its bundle, whose layers and whole network are verified, and in which no pool is left."""
    write_network(folder / "net.onnx", model)
    [job] = farm.compile(
        [read_checkpoint(folder / "net.onnx")], BuildOptions((ARCH,), batches=(64,), assembler="direct")
    )
    assert job.status is Status.SUCCEEDED, job.reason
    assert run(["verify", job.id]) == 0
    assert run(["verify", job.id, "--network", "--batch", "2"]) == 0
    assert run(["fetch", job.id, "-o", str(folder / "bundle")]) == 0
    capsys.readouterr()
    assert run(["bundle", "show", str(folder / "bundle")]) == 0
    assert "MaxPool" not in capsys.readouterr().out
    manifest: dict[str, Any] = json.loads((folder / "bundle" / "manifest.json").read_text())
    return manifest


def test_a_network_whose_windows_overlap_computes_what_onnxruntime_does(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = right_bundle(stem(), farm_of_commands, tmp_path, capsys)
    validator().validate(manifest)
    assert manifest["layers"][0]["folded"] == ["Relu relu1", "MaxPool pool2"]


def test_a_network_whose_layers_compute_its_pools_computes_what_onnxruntime_does(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = right_bundle(alexnet_cifar10(0.9, 0), farm_of_commands, tmp_path, capsys)
    assert [layer["folded"][-1] for layer in manifest["layers"][:3]] == [
        "MaxPool pool2",
        "MaxPool pool5",
        "MaxPool pool8",
    ]
    steps = [
        line for line in (tmp_path / "bundle" / "network.plan").read_text().splitlines() if line.startswith("run ")
    ]
    assert len(steps) == 4
