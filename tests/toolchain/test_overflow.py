"""Kernels whose numbers overflow: what the reference says of them, and that a wrong one is still found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, DataType, Gelu, LayerSpec, LeakyRelu, Linear, Swish
from codegen.ptx.template import Template
from codegen.selection.choose import choose_parts, choose_tiling
from codegen.verification.compare import LayerRun, poisoned, random_input, random_residual, verify_output
from farm.api import Farm
from farm.jobs.model import BuildOptions, Status
from tests.samples import checkpoint, layer
from tests.templates import shared_template, verify_random_run

LARGE: dict[DataType, float] = {"float32": 3.4e38, "float16": 65504.0, "bfloat16": 3.38e38}
SPECS: tuple[LayerSpec, ...] = (
    Conv2d(6, 8, 8, 4, 3, 3, padding=(1, 1, 1, 1)),
    Conv2d(6, 8, 8, 4, 3, 3, epilogue=(Clip(0.0, 6.0),)),
    Linear(24, 8, epilogue=(LeakyRelu(0.25), AddResidual())),
    Linear(24, 8, epilogue=(Swish(),)),
    Linear(24, 8, epilogue=(Gelu(),)),
)


def overflowing(spec: LayerSpec) -> Weights:
    """One weight in four of each kernel, of both signs, as large as the type has it."""
    rng = np.random.default_rng(0)
    kernel = rng.choice([0, 0, 0, 0, 0, 0, 1, -1], spec.weights_shape).astype(np.float32)
    return Weights(kernel * np.float32(LARGE[spec.data_type]), np.zeros(spec.output_channels, np.float32))


def made(spec: LayerSpec, weights: Weights) -> Template:
    tiling = choose_tiling(spec, 4, weights.nonzeros_per_output)
    return shared_template(spec, tiling)


@pytest.mark.parametrize("data_type", list(LARGE))
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_kernel_that_overflows_is_right(spec: LayerSpec, data_type: DataType) -> None:
    spec = replace(spec, data_type=data_type)
    weights = overflowing(spec)
    template = made(spec, weights)
    parts = choose_parts(spec, template.tiling, weights.nonzeros_per_output)
    found = verify_random_run(template, weights, parts, batch=4)
    assert found.ok, found.message
    assert found.bound_share <= 1
    assert np.isfinite(found.relative_error)


def test_infinities_of_the_wrong_sign_and_outputs_not_written_are_wrong_also_where_sums_overflow() -> None:
    spec = Linear(1, 8)
    weights = Weights(np.full((8, 1), 3.4e38, np.float32), np.zeros(8, np.float32))
    tiling = choose_tiling(spec, 64, weights.nonzeros_per_output)
    x = random_input(spec, 64, seed=0)
    with np.errstate(over="ignore"):
        right = (x * np.float32(3.4e38)).repeat(8, axis=1)
    assert np.isinf(right).any()
    assert verify_output(LayerRun(spec, tiling, weights, x, right)).message == ""
    wrong = np.where(np.isinf(right), -right, right)
    assert "instead of" in verify_output(LayerRun(spec, tiling, weights, x, wrong)).message
    largest = np.where(np.isinf(right), np.float32(3.4e38), right)
    assert "instead of" in verify_output(LayerRun(spec, tiling, weights, x, largest)).message
    unwritten = np.where(np.isinf(right), poisoned(spec, 64), right)
    assert "were not written" in verify_output(LayerRun(spec, tiling, weights, x, unwritten)).message


def test_an_output_that_was_not_written_is_wrong_where_no_number_would_be_right() -> None:
    spec = Linear(4, 8, epilogue=(AddResidual(),))
    weights = Weights(np.tile(np.float32([3e38, -3e38, 3e38, -3e38]), (8, 1)), np.zeros(8, np.float32))
    tiling = choose_tiling(spec, 64, weights.nonzeros_per_output)
    x, residual = np.ones((64, 4), np.float32), random_residual(spec, 64, seed=0)
    no_number = np.full((64, 8), np.nan, np.float32)
    run = LayerRun(spec, tiling, weights, x, no_number, residual)
    assert verify_output(run).message == ""
    no_number[5, 3] = poisoned(spec, 1)[0, 0]
    assert verify_output(run).message == "1 outputs were not written"


def test_farm_verify_calls_an_overflow_right(farm: Farm) -> None:
    net = layer("conv1", Conv2d(1, 8, 8, 2, 1, 1))
    weights = Weights(np.full((2, 1, 1, 1), 3.4e38, np.float32), np.zeros(2, np.float32))
    [job] = farm.compile([checkpoint(replace(net, weights=weights))], BuildOptions(("sm_90",)))
    assert job.status is Status.SUCCEEDED
    [found] = farm.verify(job.id)
    assert found.verification.message == ""
