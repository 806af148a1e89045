"""Layers through the whole of code generation, real nvcc, and the emulator, against a float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from codegen import emulate
from codegen.choice import choose_parts, choose_tiling
from codegen.data_types import PRECISIONS, from_float32, to_float32
from codegen.dot_products import gated_input
from codegen.layers import Weights
from codegen.networks import TEN_OPERATORS, random_weights
from codegen.networks.pruning import random_bounds
from codegen.operators import launch_of, products_together, stream_count, tiled
from codegen.reference import error_bound, layer_output
from codegen.rewrite import Kernel, rewrite
from codegen.spec import AddResidual, Conv2d, DataType, LayerSpec, Linear, is_bounded, plain
from codegen.template import Template, make_template
from codegen.tiling import Form, Part, Tiling
from codegen.toolchain import ToolLimits, find_toolchain
from codegen.verify import (
    is_written,
    poisoned,
    random_gate,
    random_input,
    random_residual,
    sample_blocks,
    verify_layer,
    verify_output,
)
from tests.templates import shared_template
from tests.toolchain.operator_case import Case
from tests.toolchain.operator_cases import CASES

LIMITS = ToolLimits(300)
SPARSITIES = (0.0, 0.5, 0.9, 1.0)
SMALL_OPERATORS = ("lenet-conv1", "lenet-conv2", "alexnet-conv1")
"""Those quick enough to compile for every sparsity; the others are for one."""
RELATIVE_ERROR = 1e-6
BESIDE = (1, 2)
"""Channels of the larger tensor before and after those of the layer."""
ROLLED = [name for name, case in CASES.items() if case.tiling.form == "rolled"]


def in_parts(case: Case) -> bool:
    """Whether it can be launched in parts: it has several K groups, which do not begin side by side."""
    return case.tiling.order != "place" and stream_count(case.spec, case.tiling) > case.tiling.cluster


def template_of(case: Case) -> Template:
    return shared_template(case.spec, case.tiling, case.virtual_arch)


def chosen_and_verified(spec: Conv2d, sparsity: float, form: Form) -> None:
    weights = random_weights(spec, sparsity)
    nonzeros = weights.nonzeros_per_kernel
    # One template of the full form for all sparsities: nvcc takes seconds for each.
    tenth = np.full(spec.kernels, spec.weights_count // spec.kernels // 10)
    tiling = choose_tiling(spec, 64, tenth if form == "full" else nonzeros, form=form)
    found = verify_layer(shared_template(spec, tiling), weights, choose_parts(spec, tiling, nonzeros))
    assert found.ok, found.message
    assert found.relative_error < RELATIVE_ERROR


@pytest.mark.parametrize(
    ("name", "sparsity"),
    [(name, sparsity) for name in TEN_OPERATORS for sparsity in (SPARSITIES if name in SMALL_OPERATORS else (0.9,))],
)
def test_the_ten_operators_compute_what_they_should(name: str, sparsity: float) -> None:
    chosen_and_verified(TEN_OPERATORS[name], sparsity, "rolled")


@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_the_full_form_computes_what_it_should(sparsity: float) -> None:
    chosen_and_verified(TEN_OPERATORS["lenet-conv1"], sparsity, "full")


def run(kernels: Sequence[Kernel], case: Case, x: NDArray[Any]) -> NDArray[Any]:
    """The output of a layer in these kernels, NaN where none of them wrote.

    Convolutions write it among the channels of a larger tensor, and nothing beside them; bounded ones read their input
    from among others, too.
    """
    residual, gate = random_residual(case.spec, case.batch, seed=0), random_gate(case.spec, case.batch, seed=0)
    arguments: dict[str, Any] = {"input": x, "residual": residual, "gate": gate, "images": case.batch}
    if isinstance(case.spec, Linear):
        tensor, own = poisoned(case.spec, case.batch), slice(None)
        arguments["output"] = tensor
    else:
        tensor = poisoned(replace(case.spec, kernels=case.spec.kernels + sum(BESIDE), groups=1), case.batch)
        own = slice(BESIDE[0], BESIDE[0] + case.spec.kernels)
        arguments["output"] = tensor.reshape(-1)[BESIDE[0] * prod(tensor.shape[2:]) :]
        arguments["output_step"] = prod(tensor.shape[1:])
        if is_bounded(case.spec):
            apart = np.full((len(x), prod(x.shape[1:]) // 4 * 4 + 12), np.nan, x.dtype)
            apart[:, : prod(x.shape[1:])] = x.reshape(len(x), -1)
            arguments["input"], arguments["input_step"] = apart, apart.shape[1]
    for kernel in kernels:
        launch = kernel.launch
        given = [arguments[name] for name in launch.arguments]
        emulate.run(kernel.ptx, launch.grid_at(case.batch), launch.block, launch.shared_bytes, given)
    beside = np.ones(tensor.shape[1], np.bool_)
    beside[own] = False
    assert not is_written(tensor[:, beside]).any()
    return tensor[:, own]


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


def rounded(values: NDArray[np.float32], data_type: DataType) -> NDArray[np.float32]:
    """To finite values that the data type has."""
    largest = np.float32(PRECISIONS[data_type].largest)
    return to_float32(from_float32(np.clip(values, -largest, largest), data_type), data_type)


def half_of_the_weights(spec: LayerSpec) -> Weights:
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal(spec.weights_shape, dtype=np.float32) * (rng.random(spec.weights_shape) < 0.5)
    bias = rng.standard_normal(spec.kernels, dtype=np.float32)
    kernel, bias = rounded(kernel.astype(np.float32), spec.data_type), rounded(bias, spec.data_type)
    return Weights(kernel, bias, random_bounds(spec))


weight_values = st.one_of(
    st.just(0.0),
    st.sampled_from([-0.0, 1.0, -1.0, 2.0**-126, 2.0**-149, 1.5, 2.0**20]),
    st.floats(-8, 8, width=32),
)


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_layer_is_that_of_the_reference(name: str) -> None:
    case = CASES[name]
    weights, x = half_of_the_weights(case.spec), random_input(case.spec, case.batch, seed=1)
    output = run([rewrite(template_of(case), weights)], case, x)
    share = np.abs(to_float32(output, case.spec.data_type) - reference(case, weights, x)) / bound(case, weights, x)
    assert share.max() <= 1


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_any_weights_give_the_layer_of_the_reference(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    data_type = case.spec.data_type
    kernel = data.draw(hnp.arrays(np.float32, case.spec.weights_shape, elements=weight_values, fill=st.just(0.0)))
    bias = data.draw(hnp.arrays(np.float32, case.spec.kernels, elements=weight_values))
    bounds = random_bounds(case.spec, data.draw(st.integers(0, 99)))
    weights = Weights(rounded(kernel, data_type), rounded(bias, data_type), bounds)
    x = random_input(case.spec, case.batch, data.draw(st.integers(0, 99)))
    output = to_float32(run([rewrite(template_of(case), weights)], case, x), data_type)
    allowed = bound(case, weights, x)
    safe = np.isfinite(allowed)
    assert (np.abs(output - reference(case, weights, x)) <= allowed)[safe].all()
    assert safe.all() or data_type == "float16"


@pytest.mark.parametrize("name", [name for name in ROLLED if not CASES[name].spec.epilogue])
def test_a_layer_without_weights_gives_exactly_its_bias(name: str) -> None:
    case = CASES[name]
    bias = rounded(np.linspace(-1, 1, case.spec.kernels, dtype=np.float32), case.spec.data_type)
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
        case = Case(spec, Tiling(12, 5, 1, 3, 2, 2, form=form))
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
    tiling = Tiling(8, 8, 1, 4, 2, 2)
    small, large = (
        shared_template(Conv2d(c, 8, 8, k, 3, 3, padding=(1, 1, 1, 1)), tiling) for c, k in ((2, 4), (512, 512))
    )
    assert abs(len(small.ptx.splitlines()) - len(large.ptx.splitlines())) < 20


def additions_of(case: Case, nonzeros: slice | int) -> int:
    """How often a sum of three kernels goes to float32, whose weights are zero but for these [C * R * S]."""
    kernel = np.zeros((case.spec.kernels, case.spec.weights_count // case.spec.kernels), dtype=np.float32)
    kernel[:, nonzeros] = 1
    weights = Weights(kernel.reshape(case.spec.weights_shape), np.zeros(case.spec.kernels, dtype=np.float32))
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
    assert additions_of(Case(spec, Tiling(5, 4, 1, 3, 20, 2, images=2)), nonzeros) == additions


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("images", [2, 4])
def test_two_images_in_a_lane_give_each_image_what_it_has_alone(images: int, batch: int) -> None:
    spec = Conv2d(5, 7, 8, 4, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    case = Case(spec, Tiling(8, 7, 1, 4, 2, 2, images=images), batch=batch)
    kernel, x = rewrite(template_of(case), half_of_the_weights(spec)), random_input(spec, batch, seed=5)
    together = run([kernel], case, x)
    alone = [run([kernel], replace(case, batch=1), x[i : i + 1]) for i in range(batch)]
    assert together.tobytes() == np.concatenate(alone).tobytes()


def test_sampled_blocks_see_every_group_every_corner_and_every_edge() -> None:
    spec = TEN_OPERATORS["vgg-conv3"]
    tiling = Tiling(16, 8, 1, 32, 4, 2)
    grid = launch_of(spec, tiling).grid_at(2)
    down, across = tiled(spec, tiling).tiles
    blocks = sample_blocks(tiled(spec, tiling), grid, seed=3)
    assert len(blocks) < grid[0] * grid[1] * grid[2]
    for group in range(grid[2]):
        places = {divmod(x, across) for x, _, z in blocks if z == group}
        assert {(0, 0), (0, across - 1), (down - 1, 0), (down - 1, across - 1)} <= places
        assert any(row == 0 and 0 < column < across - 1 for row, column in places)
        assert any(row == down - 1 and 0 < column < across - 1 for row, column in places)
        assert any(column == 0 and 0 < row < down - 1 for row, column in places)
        assert any(column == across - 1 and 0 < row < down - 1 for row, column in places)
    assert {y for _, y, _ in blocks} == {0, 1}


@pytest.mark.parametrize(
    "name", ["channels and kernels that do not divide", "linear, copied by fours", "float16, added up in float32"]
)
def test_a_wrong_weight_and_a_missing_output_are_noticed(name: str) -> None:
    case = CASES[name]
    weights, x = half_of_the_weights(case.spec), random_input(case.spec, case.batch, seed=0)
    residual = random_residual(case.spec, case.batch, seed=0)
    wrong = Weights(weights.kernel.copy(), weights.bias, weights.bounds)
    wrong.kernel[np.nonzero(wrong.kernel)] *= np.float32(1.25)

    def found(output: NDArray[Any]) -> str:
        return verify_output(case.spec, case.tiling, weights, x, output, residual=residual).message

    right = run([rewrite(template_of(case), weights)], case, x)
    assert not found(right)
    assert "error bound" in found(run([rewrite(template_of(case), wrong)], case, x))
    assert "were not written" in found(run([rewrite(template_of(case), weights, Part(0, 1))], case, x))


def test_an_output_written_where_none_belongs_is_noticed() -> None:
    case = CASES["channels and kernels that do not divide"]
    template, weights = template_of(case), half_of_the_weights(case.spec)
    plane = 4 * 9 * 11
    assert AddResidual() not in case.spec.epilogue
    last = f"+{3 * plane}],v; }} // farm.store 3"
    assert template.ptx.count(last) == 1
    stray = template.ptx.replace(last, last.replace(f"+{3 * plane}", f"+{4 * plane}"))
    assert verify_layer(template, weights, [Part(0, 1)]).ok
    message = verify_layer(Template.from_ptx(stray), weights, [Part(0, 1)]).message
    assert "outputs written outside the blocks that ran" in message
