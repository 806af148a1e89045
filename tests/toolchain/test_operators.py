"""Layers through the whole of code generation, real nvcc, and the emulator, against a float64 reference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.layer_spec import Conv2d, plain
from codegen.ir.tiling import Form, Part, Tiling
from codegen.kernels import products_together, stream_count, tiled
from codegen.model_zoo import random_weights
from codegen.model_zoo.pruning import random_bounds
from codegen.ptx.rewrite import kernel_facts, rewrite
from codegen.ptx.template import make_template
from codegen.ptx.template_lines import MultiplyAdd, read_line
from codegen.toolchain.tools import ToolLimits, find_toolchain
from codegen.verification.compare import random_gate, random_input, random_residual
from codegen.verification.dot_products import gated_input
from codegen.verification.reference import layer_output
from tests.error_bounds import error_bound
from tests.templates import shared_template
from tests.toolchain.operator_case import Case
from tests.toolchain.operator_cases import CASES
from tests.toolchain.operator_run import half_of_the_weights, rounded, run, template_of

LIMITS = ToolLimits(300)
ROLLED = [n for n, case in CASES.items() if case.tiling.form == "rolled" and not case.tiling.reads_table]


def in_parts(case: Case) -> bool:
    """Whether it can be launched in parts: it has several K groups, which do not begin side by side."""
    return case.tiling.order != "place" and stream_count(case.spec, case.tiling) > case.tiling.cluster


def gated(case: Case, x: NDArray[Any]) -> NDArray[Any]:
    """The input as the weights meet it: times the gates if the layer has some."""
    gate = random_gate(case.spec, case.batch, seed=0)
    return x if gate is None else gated_input(case.spec, x, gate)


def reference(case: Case, weights: Weights, x: NDArray[Any]) -> NDArray[np.float64]:
    residual = random_residual(case.spec, case.batch, seed=0)
    return layer_output(plain(case.spec), weights, gated(case, x), residual=residual)


def bound(case: Case, weights: Weights, x: NDArray[Any]) -> NDArray[np.float64]:
    together = products_together(weights, case.tiling)
    residual = random_residual(case.spec, case.batch, seed=0)
    return error_bound(plain(case.spec), weights, gated(case, x), residual=residual, products_together=together)


weight_values = st.one_of(
    st.just(0.0), st.sampled_from([-0.0, 1.0, -1.0, 2.0**-126, 2.0**-149, 1.5, 2.0**20]), st.floats(-8, 8, width=32)
)


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_layer_is_that_of_the_reference(name: str) -> None:
    case = CASES[name]
    weights, x = half_of_the_weights(case.spec), random_input(case.spec, case.batch, seed=1)
    output = run([rewrite(template_of(case), weights)], case, x)
    share = np.abs(to_float32(output, case.spec.data_type) - reference(case, weights, x)) / bound(case, weights, x)
    assert share.max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_any_weights_give_the_layer_of_the_reference(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    data_type = case.spec.data_type
    kernel = data.draw(hnp.arrays(np.float32, case.spec.weights_shape, elements=weight_values, fill=st.just(0.0)))
    bias = data.draw(hnp.arrays(np.float32, case.spec.output_channels, elements=weight_values))
    bounds = random_bounds(case.spec, data.draw(st.integers(0, 99)))
    weights = Weights(rounded(kernel, data_type), rounded(bias, data_type), bounds)
    x = random_input(case.spec, case.batch, data.draw(st.integers(0, 99)))
    output = to_float32(run([rewrite(template_of(case), weights)], case, x), data_type)
    allowed = bound(case, weights, x)
    safe = np.isfinite(allowed)
    assert (np.abs(output - reference(case, weights, x)) <= allowed)[safe].all()
    assert safe.all() or data_type == "float16"


@pytest.mark.parametrize("name", ROLLED)
def test_the_facts_about_a_kernel_are_those_of_its_text(name: str) -> None:
    case = CASES[name]
    template, weights = template_of(case), half_of_the_weights(case.spec)
    layer, streams = tiled(case.spec, case.tiling), stream_count(case.spec, case.tiling)
    ends = [0, case.tiling.cluster, streams] if in_parts(case) else [0, streams]
    parts = [Part(first, end) for first, end in pairwise(ends)]
    facts = [kernel_facts(layer, weights, part) for part in parts]
    for part, found in zip(parts, facts, strict=True):
        lines = rewrite(template, weights, part).ptx.decode().splitlines()
        assert found.fmas_kept == sum(isinstance(read_line(line), MultiplyAdd) for line in lines)
    dense = case.tiling.rows * case.spec.weights_count
    assert sum(found.fmas_kept + found.fmas_deleted for found in facts) == dense


@pytest.mark.parametrize("name", [name for name in ROLLED if not CASES[name].spec.epilogue])
def test_a_layer_without_weights_gives_exactly_its_bias(name: str) -> None:
    case = CASES[name]
    bias = rounded(np.linspace(-1, 1, case.spec.output_channels, dtype=np.float32), case.spec.data_type)
    kernel = rewrite(
        template_of(case), Weights(np.zeros(case.spec.weights_shape, dtype=np.float32), bias, random_bounds(case.spec))
    )
    assert kernel.fmas_kept == 0
    output = to_float32(run([kernel], case, random_input(case.spec, case.batch, seed=0)), case.spec.data_type)
    assert (output == bias.reshape(-1, *[1] * (output.ndim - 2))).all()


def with_odd_values(case: Case, seed: int) -> NDArray[Any]:
    """An input with an infinity and a NaN, at places that differ by seed."""
    values = to_float32(random_input(case.spec, case.batch, seed), case.spec.data_type)
    places = np.random.default_rng(seed).choice(values.size, 2, replace=False)
    values.reshape(-1)[places] = np.inf, np.nan
    return from_float32(values, case.spec.data_type)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_infinite_and_missing_inputs_reach_the_outputs_that_read_them_and_no_others(name: str) -> None:
    case = CASES[name]
    weights = half_of_the_weights(case.spec)
    # The first input whose missing element some output reads.
    x = next(x for x in map(partial(with_odd_values, case), range(99)) if np.isnan(reference(case, weights, x)).any())
    output = to_float32(run([rewrite(template_of(case), weights)], case, x), case.spec.data_type)
    expected = reference(case, weights, x)
    np.testing.assert_array_equal(np.isnan(output), np.isnan(expected))
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(output[infinite], expected[infinite])
    assert not np.isinf(output[~infinite]).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ROLLED if in_parts(CASES[name])])
def test_a_layer_launched_in_parts_gives_bit_for_bit_what_one_launch_gives(name: str) -> None:
    case = CASES[name]
    weights, x = half_of_the_weights(case.spec), random_input(case.spec, case.batch, seed=3)
    template, streams = template_of(case), stream_count(case.spec, case.tiling)
    together = run([rewrite(template, weights)], case, x)
    first_end = case.tiling.cluster  # the blocks of a cluster run together
    parts = [rewrite(template, weights, Part(first, end)) for first, end in ((0, first_end), (first_end, streams))]
    assert run(parts, case, x).tobytes() == together.tobytes()
    assert run(parts[::-1], case, x).tobytes() == together.tobytes()


def test_both_forms_give_the_same_numbers() -> None:
    spec = Conv2d(4, 10, 12, 6, 3, 3, padding=(1, 1, 1, 1))
    weights = random_weights(spec, 0.8)
    x = random_input(spec, 2, seed=1)
    outputs = []
    forms: tuple[Form, ...] = ("rolled", "full")
    for form in forms:
        case = Case(spec, Tiling("conv2d", 12, 5, 1, 3, 2, 2, form=form))
        kernel = rewrite(template_of(case), weights)
        assert kernel.fmas_kept == weights.nonzeros
        outputs.append(run([kernel], case, x))
    assert (np.abs(outputs[0] - outputs[1]) <= 2 * error_bound(spec, weights, x)).all()


def test_making_a_template_twice_gives_the_same_bytes() -> None:
    case, toolchain = CASES["a 1x1 kernel copied by fours"], find_toolchain()
    again = make_template(case.spec, case.tiling, case.virtual_arch, toolchain, LIMITS)
    assert again.ptx == template_of(case).ptx


READ_BY_TOOLS = {
    "NVCC_PREPEND_FLAGS": "-DROWS=1",
    "NVCC_APPEND_FLAGS": "-lineinfo",
    "NVCC_CCBIN": "/nowhere/g++",
    "INCLUDES": "-DCHANNELS=1",
    "SYSTEM_INCLUDES": "-DKERNELS=1",
    "NVVM_FLAGS": "-O0",
    "CPATH": "/nowhere",
    "GCC_EXEC_PREFIX": "/nowhere/",
}


def test_no_variable_that_the_compilers_read_reaches_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    case, toolchain = CASES["a 1x1 kernel copied by fours"], find_toolchain()
    for name, value in READ_BY_TOOLS.items():
        monkeypatch.setenv(name, value)
    again = make_template(case.spec, case.tiling, case.virtual_arch, toolchain, LIMITS)
    monkeypatch.undo()
    assert again.ptx == template_of(case).ptx


def test_a_template_does_not_grow_with_channels_or_kernels() -> None:
    tiling = Tiling("conv2d", 8, 8, 1, 4, 2, 2)
    small, large = (
        shared_template(Conv2d(c, 8, 8, k, 3, 3, padding=(1, 1, 1, 1)), tiling) for c, k in ((2, 4), (512, 512))
    )
    assert abs(len(small.ptx.splitlines()) - len(large.ptx.splitlines())) < 20


def additions_of(case: Case, nonzeros: slice | int) -> int:
    """Number of additions to float32 of three kernels whose weights are zero but for these [C * R * S]."""
    kernel = np.zeros(
        (case.spec.output_channels, case.spec.weights_count // case.spec.output_channels), dtype=np.float32
    )
    kernel[:, nonzeros] = 1
    weights = Weights(kernel.reshape(case.spec.weights_shape), np.zeros(case.spec.output_channels, dtype=np.float32))
    additions, rest = divmod(rewrite(template_of(case), weights).ptx.count(b"// farm.accumulate"), 3)
    assert rest == 0
    return additions


@pytest.mark.parametrize(
    ("nonzeros", "additions"),
    [(slice(None), 3), (slice(160), 1), (slice(161), 2), (slice(170, 330), 1), (slice(170, 331), 2), (332, 1)],
)
def test_a_float16_sum_goes_to_float32_before_it_has_more_than_160_products_and_at_the_end(
    nonzeros: slice | int, additions: int
) -> None:
    case = CASES["image pairs, chunks added up together, the last alone"]  # of 36 weights each; the tenth has nine
    assert additions_of(case, nonzeros) == additions


@pytest.mark.parametrize(("nonzeros", "additions"), [(slice(None), 3), (slice(180, None), 2), (slice(0, 540, 180), 1)])
def test_a_chunk_of_more_than_160_products_goes_to_float32_whole_and_one_of_none_does_not(
    nonzeros: slice, additions: int
) -> None:
    spec = Conv2d(60, 4, 5, 3, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    assert additions_of(Case(spec, Tiling("conv2d", 5, 4, 1, 3, 20, 2, images=2)), nonzeros) == additions


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("images", [2, 4])
def test_two_images_in_a_lane_give_each_image_what_it_has_alone(images: int, batch: int) -> None:
    spec = Conv2d(5, 7, 8, 4, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    case = Case(spec, Tiling("conv2d", 8, 7, 1, 4, 2, 2, images=images), batch=batch)
    kernel, x = rewrite(template_of(case), half_of_the_weights(spec)), random_input(spec, batch, seed=5)
    together = run([kernel], case, x)
    alone = [run([kernel], replace(case, batch=1), x[i : i + 1]) for i in range(batch)]
    assert together.tobytes() == np.concatenate(alone).tobytes()
