"""Layers through the whole of code generation, real nvcc, and the emulator, against a float64 reference."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from codegen import emulate
from codegen.choice import choose_tiling
from codegen.layers import Weights
from codegen.networks import TEN_OPERATORS, random_weights
from codegen.operators import launch_of, operator_of
from codegen.reference import convolve, error_bound
from codegen.rewrite import Kernel, rewrite
from codegen.spec import Conv2d
from codegen.template import Template, make_template, template_key
from codegen.tiling import Form, Tiling
from codegen.toolchain import Toolchain, ToolLimits, find_toolchain
from codegen.verify import Verification, compare, sample_blocks, verify_kernel

LIMITS = ToolLimits(300)
SPARSITIES = (0.0, 0.5, 0.9, 1.0)
RELATIVE_ERROR = 1e-6


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain()


def verified(spec: Conv2d, weights: Weights, form: Form, virtual_arch: str) -> Verification:
    nonzeros = weights.nonzeros_per_kernel
    if form == "full":
        # One template for all sparsities: nvcc takes seconds for each.
        nonzeros = np.full(spec.kernels, spec.weights_count // spec.kernels // 10)
    tiling = choose_tiling(spec, 64, nonzeros, form=form)
    kernel = rewrite(made(spec, tiling, virtual_arch), weights)
    return verify_kernel(kernel, spec, tiling, weights)


@cache
def made(spec: Conv2d, tiling: Tiling, virtual_arch: str) -> Template:
    return make_template(spec, tiling, virtual_arch, find_toolchain(), LIMITS)


@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("name", TEN_OPERATORS)
def test_the_ten_operators_compute_what_they_should(name: str, sparsity: float) -> None:
    spec = TEN_OPERATORS[name]
    found = verified(spec, random_weights(spec, sparsity), "rolled", "compute_80")
    assert found.ok, found.message
    assert found.relative_error < RELATIVE_ERROR


@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("name", ["lenet-conv1", "alexnet-conv1", "vgg-conv1"])
def test_the_full_form_computes_what_it_should(name: str, sparsity: float) -> None:
    spec = TEN_OPERATORS[name]
    found = verified(spec, random_weights(spec, sparsity), "full", "compute_80")
    assert found.ok, found.message
    assert found.relative_error < RELATIVE_ERROR


LAYERS: dict[str, tuple[Conv2d, Tiling, str]] = {
    "channels and kernels that do not divide": (
        Conv2d(5, 9, 11, 7, 3, 3, padding=(1, 1, 1, 1)),
        Tiling(8, 4, 1, 4, 2, 2),
        "compute_80",
    ),
    "several rows a thread, three stages": (
        Conv2d(5, 9, 11, 7, 3, 3, padding=(1, 1, 1, 1)),
        Tiling(8, 4, 2, 4, 2, 3),
        "compute_80",
    ),
    "strides, a rectangular kernel, uneven padding": (
        Conv2d(5, 19, 21, 7, 3, 5, stride=(2, 3), padding=(1, 0, 2, 1)),
        Tiling(5, 4, 2, 3, 2, 2),
        "compute_80",
    ),
    "stride 2, where loads come in pairs": (
        Conv2d(6, 20, 21, 7, 3, 3, stride=(2, 2), padding=(1, 0, 1, 1)),
        Tiling(8, 4, 2, 4, 2, 3),
        "compute_80",
    ),
    "a stride larger than the kernel": (
        Conv2d(3, 13, 13, 4, 2, 1, stride=(3, 4)),
        Tiling(4, 4, 2, 4, 3, 2),
        "compute_80",
    ),
    "without cp.async": (
        Conv2d(5, 9, 11, 7, 3, 3, stride=(1, 2), padding=(0, 1, 1, 2)),
        Tiling(4, 8, 1, 7, 2, 2),
        "compute_75",
    ),
    "a 1x1 kernel": (Conv2d(9, 7, 7, 10, 1, 1), Tiling(7, 5, 1, 4, 4, 2), "compute_80"),
    "one output": (Conv2d(4, 3, 3, 1, 3, 3), Tiling(1, 1, 1, 1, 4, 2), "compute_80"),
    "full form": (
        Conv2d(3, 9, 11, 5, 3, 2, stride=(1, 2), padding=(1, 1, 0, 0)),
        Tiling(5, 4, 2, 3, 2, 2, "full"),
        "compute_80",
    ),
    "full form without cp.async": (
        Conv2d(3, 9, 11, 5, 3, 2, padding=(1, 1, 0, 0)),
        Tiling(8, 4, 1, 5, 3, 2, "full"),
        "compute_75",
    ),
}


@cache
def template_of(name: str) -> Template:
    spec, tiling, virtual_arch = LAYERS[name]
    return make_template(spec, tiling, virtual_arch, find_toolchain(), LIMITS)


def run(kernel: Kernel, spec: Conv2d, x: np.ndarray) -> np.ndarray:
    output = np.full((len(x), *spec.output_shape), np.nan, dtype=np.float32)
    launch = kernel.launch
    emulate.run(kernel.ptx, launch.grid_at(len(x)), launch.block, launch.shared_bytes, [x, output])
    return output


weight_values = st.one_of(
    st.just(0.0),
    st.sampled_from([-0.0, 1.0, -1.0, 2.0**-126, 2.0**-149, 1.5, 2.0**20]),
    st.floats(-8, 8, width=32),
)


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_weights_give_the_layer_of_the_reference(name: str, data: st.DataObject) -> None:
    spec, _, _ = LAYERS[name]
    kernel = data.draw(hnp.arrays(np.float32, spec.weights_shape, elements=weight_values, fill=st.just(0.0)))
    bias = data.draw(hnp.arrays(np.float32, spec.kernels, elements=weight_values))
    weights = Weights(kernel, bias)
    x = np.random.default_rng(data.draw(st.integers(0, 99))).standard_normal((2, *spec.input_shape), dtype=np.float32)
    output = run(rewrite(template_of(name), weights), spec, x)
    reference = convolve(spec, weights, x)
    assert (np.abs(output - reference) <= error_bound(spec, weights, x)).all()
    assert (output[reference == 0] == 0).all() or weights.nonzeros > 0


@pytest.mark.parametrize("name", [name for name in LAYERS if LAYERS[name][1].form == "rolled"])
def test_a_layer_without_weights_gives_exactly_its_bias(name: str) -> None:
    spec, _, _ = LAYERS[name]
    bias = np.linspace(-1, 1, spec.kernels, dtype=np.float32)
    weights = Weights(np.zeros(spec.weights_shape, dtype=np.float32), bias)
    x = np.random.default_rng(0).standard_normal((2, *spec.input_shape), dtype=np.float32)
    kernel = rewrite(template_of(name), weights)
    assert kernel.fmas_kept == 0
    assert (run(kernel, spec, x) == bias[:, None, None]).all()


def test_infinite_and_missing_inputs_reach_the_outputs_that_read_them_and_no_others() -> None:
    name = "channels and kernels that do not divide"
    spec, _, _ = LAYERS[name]
    weights = random_weights(spec, 0.7)
    x = np.random.default_rng(0).standard_normal((1, *spec.input_shape), dtype=np.float32)
    x[0, 2, 4, 5], x[0, 3, 0, 0] = np.inf, np.nan
    output, reference = run(rewrite(template_of(name), weights), spec, x), convolve(spec, weights, x)
    assert np.array_equal(np.isnan(output), np.isnan(reference))
    infinite = np.isinf(reference)
    assert infinite.any()
    assert np.array_equal(output[infinite], reference[infinite])


def test_both_forms_give_the_same_numbers(toolchain: Toolchain) -> None:
    spec = Conv2d(4, 10, 12, 6, 3, 3, padding=(1, 1, 1, 1))
    weights = random_weights(spec, 0.8)
    x = np.random.default_rng(1).standard_normal((2, *spec.input_shape), dtype=np.float32)
    outputs = []
    forms: tuple[Form, ...] = ("rolled", "full")
    for form in forms:
        tiling = Tiling(12, 5, 1, 3, 2, 2, form)
        kernel = rewrite(make_template(spec, tiling, "compute_80", toolchain, LIMITS), weights)
        assert kernel.fmas_kept == weights.nonzeros
        outputs.append(run(kernel, spec, x))
    assert (np.abs(outputs[0] - outputs[1]) <= 2 * error_bound(spec, weights, x)).all()


def test_making_a_template_twice_gives_the_same_bytes(toolchain: Toolchain) -> None:
    spec, tiling, virtual_arch = LAYERS["a 1x1 kernel"]
    again = make_template(spec, tiling, virtual_arch, toolchain, LIMITS)
    assert again.ptx == template_of("a 1x1 kernel").ptx
    assert template_key(spec, tiling, virtual_arch, toolchain).compiler == toolchain.nvcc_version


def test_a_template_does_not_grow_with_channels_or_kernels() -> None:
    toolchain = find_toolchain()
    tiling = Tiling(8, 8, 1, 4, 2, 2)
    small, large = (
        make_template(Conv2d(c, 8, 8, k, 3, 3, padding=(1, 1, 1, 1)), tiling, "compute_80", toolchain, LIMITS)
        for c, k in ((2, 4), (512, 512))
    )
    assert abs(len(small.ptx.splitlines()) - len(large.ptx.splitlines())) < 20


def test_sampled_blocks_see_every_group_every_corner_and_every_edge() -> None:
    spec = TEN_OPERATORS["vgg-conv3"]
    tiling = Tiling(16, 8, 1, 32, 4, 2)
    grid = launch_of(spec, tiling).grid_at(2)
    down, across = operator_of(spec).tiles(spec, tiling)
    blocks = sample_blocks(spec, tiling, grid, seed=3)
    assert len(blocks) < grid[0] * grid[1] * grid[2]
    for group in range(grid[2]):
        places = {divmod(x, across) for x, _, z in blocks if z == group}
        assert {(0, 0), (0, across - 1), (down - 1, 0), (down - 1, across - 1)} <= places
        assert any(row == 0 and 0 < column < across - 1 for row, column in places)
        assert any(row == down - 1 and 0 < column < across - 1 for row, column in places)
        assert any(column == 0 and 0 < row < down - 1 for row, column in places)
        assert any(column == across - 1 and 0 < row < down - 1 for row, column in places)
    assert {y for _, y, _ in blocks} == {0, 1}


def test_a_wrong_weight_a_missing_output_and_a_stray_one_are_all_noticed() -> None:
    name = "channels and kernels that do not divide"
    spec, tiling, _ = LAYERS[name]
    weights = random_weights(spec, 0.5)
    wrong = Weights(weights.kernel.copy(), weights.bias)
    k, c, r, s = (int(i[0]) for i in np.nonzero(wrong.kernel))
    wrong.kernel[k, c, r, s] *= np.float32(1.001)
    assert verify_kernel(rewrite(template_of(name), weights), spec, tiling, weights).ok
    assert "error bound" in verify_kernel(rewrite(template_of(name), wrong), spec, tiling, weights).message
    x = np.random.default_rng(0).standard_normal((1, *spec.input_shape), dtype=np.float32)
    output = convolve(spec, weights, x).astype(np.float32)
    region = operator_of(spec).block_region(spec, tiling, (0, 0, 0))
    assert compare(spec, weights, x, output, [region], 1, 1).ok
    output[0, 0, 0, 0] = np.nan
    assert not compare(spec, weights, x, output, [region], 1, 1).ok
