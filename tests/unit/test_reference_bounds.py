"""The error bound holds for every order of summation in every data type, and a wrong kernel exceeds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.layer_spec import (
    AddResidual,
    Clip,
    Conv2d,
    ConvTranspose2d,
    DataType,
    Gelu,
    LayerSpec,
    LeakyRelu,
    Linear,
    Quantize,
    Scale,
    Swish,
    Tanh,
)
from codegen.model_zoo import TEN_OPERATORS
from codegen.verification.reference import layer_output
from tests.error_bounds import error_bound
from tests.unit.any_order import Arithmetic, computed_output, dense_layer, each_arithmetic
from tests.unit.layer_definitions import random_arrays, random_weights, specs

SCALES: dict[DataType, list[float]] = {
    "float32": [1, 1e-20, 1e-38, 1e-44],
    "bfloat16": [1, 1e-20, 1e-38, 1e-40],
    "float16": [1, 1e-4, 1e-6, 1e-7],
}


def assert_computed_is_within_the_bound(
    spec: LayerSpec, weights: Weights, scale: float, arithmetic: Arithmetic, rng: np.random.Generator, times: int
) -> None:
    x, residual = random_arrays(spec, rng, 1, scale)
    exact = layer_output(spec, weights, x, residual=residual)
    bound = error_bound(spec, weights, x, residual=residual, products_together=arithmetic.together)
    assert np.isfinite(bound).all()
    places = list(np.ndindex(exact.shape))
    with np.errstate(under="ignore"):
        for place in [places[i] for i in rng.integers(len(places), size=times)]:
            computed = computed_output(spec, weights, x, residual, place, arithmetic, rng)
            assert abs(computed - exact[place]) <= bound[place], place


@each_arithmetic
@settings(deadline=None, max_examples=60)
@given(spec=specs(), seed=st.integers(0, 1000), scale=st.integers(0, 3))
def test_every_layer_computed_in_any_order_keeps_the_bound(
    arithmetic: Arithmetic, spec: LayerSpec, seed: int, scale: int
) -> None:
    rng = np.random.default_rng(seed)
    spec = replace(spec, data_type=arithmetic.data_type)
    weights = random_weights(spec, rng)
    size = np.float32(SCALES[spec.data_type][scale])
    bias = to_float32(from_float32(weights.bias * size, spec.data_type), spec.data_type)
    assert_computed_is_within_the_bound(spec, Weights(weights.kernel, bias), float(size), arithmetic, rng, 4)


@each_arithmetic
@pytest.mark.parametrize(
    "epilogue",
    [
        (),
        (LeakyRelu(0.1), AddResidual(), Clip(-0.1, 0.7)),
        (Gelu(), AddResidual(), Swish(), Tanh()),
        (Quantize(0.0625, -100, 100), AddResidual(), Scale(-1.5, 0.25), Quantize(0.125, -128, 127)),
    ],
    ids=["plain", "epilogue", "activations", "quantized"],
)
def test_a_long_sum_in_any_order_keeps_the_bound(arithmetic: Arithmetic, epilogue: tuple[Any, ...]) -> None:
    rng = np.random.default_rng(0)
    spec = Conv2d(48, 3, 3, 2, 3, 3, epilogue=epilogue, data_type=arithmetic.data_type)
    assert_computed_is_within_the_bound(spec, random_weights(spec, rng), 1.0, arithmetic, rng, 30)


MISSING = [
    Conv2d(32, 8, 8, 4, 3, 3, padding=(1, 1, 1, 1), epilogue=(LeakyRelu(0.5), AddResidual())),
    ConvTranspose2d(32, 6, 6, 4, 2, 2, (2, 2), epilogue=(Clip(high=100.0),)),
    Linear(128, 4),
]


@each_arithmetic
@pytest.mark.parametrize("spec", MISSING, ids=str)
def test_a_missing_product_is_beyond_the_bound_of_most_outputs(spec: LayerSpec, arithmetic: Arithmetic) -> None:
    rng = np.random.default_rng(1)
    spec = replace(spec, data_type=arithmetic.data_type)
    weights, (x, residual) = random_weights(spec, rng, 0.9), random_arrays(spec, rng, 32)
    kernel = weights.kernel.copy()
    for k in range(spec.output_channels):
        kernel[k].flat[np.argmax(np.abs(kernel[k]))] = 0
    wrong = layer_output(spec, Weights(kernel, weights.bias), x, residual=residual)
    error = np.abs(wrong - layer_output(spec, weights, x, residual=residual))
    bound = error_bound(spec, weights, x, residual=residual, products_together=arithmetic.together)
    met = error > 0  # one position of a transposed kernel meets one output in four only
    assert (error > bound)[met].mean() > 0.7


def test_the_bound_is_tight_enough_to_catch_one_wrong_weight() -> None:
    spec = TEN_OPERATORS["alexnet-conv2"]
    rng = np.random.default_rng(0)
    weights, (x, _) = random_weights(spec, rng, 0.9), random_arrays(spec, rng, 1)
    wrong = weights.kernel.copy()
    k, c = np.argwhere(wrong[:, :, 2, 2])[0]  # the middle of the kernel never meets the padding
    wrong[k, c, 2, 2] *= np.float32(1.01)
    error = np.abs(layer_output(spec, Weights(wrong, weights.bias), x) - layer_output(spec, weights, x))
    assert (error > error_bound(spec, weights, x))[0, k].mean() > 0.9


@pytest.mark.parametrize(
    "arithmetic", [Arithmetic("float32"), Arithmetic("float16"), Arithmetic("float16", 64)], ids=str
)
def test_rounding_always_one_way_comes_near_the_bound(arithmetic: Arithmetic) -> None:
    length, chunks = 64, 4 if arithmetic.together else 1
    spec, weights = dense_layer(length * chunks, arithmetic.data_type)
    x = np.full((chunks, length), np.finfo(arithmetic.products).eps / 2, arithmetic.products)  # 1 + eps / 2 makes 1
    x[:, 0] = 1
    total = arithmetic.rest(0)
    for chunk in x:
        part = arithmetic.products(0)
        for element in chunk:
            part += element
        total += arithmetic.rest(part)
    assert total == chunks
    error = abs(float(total) - layer_output(spec, weights, x.reshape(1, -1)).item())
    bound = error_bound(spec, weights, x.reshape(1, -1), products_together=arithmetic.together).item()
    assert 0.9 * bound < error <= bound


def test_the_bound_of_float32_is_one_unit_roundoff_for_each_operation() -> None:
    spec, weights = dense_layer(100, "float32")
    assert error_bound(spec, weights, np.ones((1, 100), np.float32)) == pytest.approx(101 * 2.0**-24 * 100, rel=1e-4)


def test_partial_sums_make_the_bound_of_float16_that_of_their_length() -> None:
    spec, weights = dense_layer(1024, "float16")
    x = np.ones((1, 1024), np.float16)
    bounds = [error_bound(spec, weights, x, products_together=n).item() for n in (16, 64, 1024, None)]
    assert bounds[0] < bounds[1] / 3 < bounds[2] / 30
    assert bounds[0] == pytest.approx((16 + 1) * 2.0**-11 * 1024, rel=0.02)  # and one for the last rounding
    assert bounds[3] == bounds[2] == pytest.approx(((1 + 2.0**-11) ** 1024 - 1 + 2.0**-11) * 1024, rel=2e-3)


def test_adding_up_partial_sums_counts_one_rounding_of_float32_each() -> None:
    products = 2**13
    spec, weights = dense_layer(products, "float16")
    bound = error_bound(spec, weights, np.ones((1, products), np.float16), products_together=1).item()
    assert bound == pytest.approx((2.0**-11 + products * 2.0**-24 + 2.0**-11) * products, rel=1e-3)


def test_a_kernel_with_few_non_zeros_has_no_more_roundings_than_products() -> None:
    spec = Linear(12, 2, data_type="float16")
    kernel = np.zeros((2, 12), np.float32)
    kernel[0, 3:7], kernel[1, 3:5] = 1, 1
    weights, x = Weights(kernel, np.zeros(2, np.float32)), np.ones((1, 12), np.float16)
    four, two = error_bound(spec, weights, x, products_together=160)[0]
    assert four == pytest.approx((4 + 1) * 2.0**-11 * 4, rel=0.01)
    assert two == pytest.approx((2 + 1) * 2.0**-11 * 2, rel=0.01)


def test_each_output_is_rounded_to_bfloat16_once() -> None:
    spec, weights = dense_layer(1, "bfloat16")
    x = from_float32(np.array([[1.0], [3.0], [0.0]], np.float32), "bfloat16")
    bound = error_bound(spec, weights, x)
    np.testing.assert_allclose(bound[:2, 0], [2.0**-8, 3 * 2.0**-8], rtol=1e-4)
    assert 0 < bound[2] < 1e-37


def test_a_slope_above_one_multiplies_the_error_of_negative_sums() -> None:
    x = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]], np.float32)
    plain, steep, flat = (
        error_bound(*dense_layer(2, "float32", *epilogue), x)[:, 0]
        for epilogue in ((), (LeakyRelu(8.0),), (LeakyRelu(0.125),))
    )
    np.testing.assert_allclose(steep, [plain[0], 8 * plain[1] + 16 * 2.0**-24, 8 * plain[2]], rtol=1e-5)
    np.testing.assert_allclose(flat, [plain[0], plain[1] + 0.25 * 2.0**-24, plain[2]], rtol=1e-5)


def test_an_activation_scales_the_error_and_adds_its_own() -> None:
    x = np.array([[1.0, 1.0]], np.float32)
    plain, after = (error_bound(*dense_layer(2, "float32", *epilogue), x).item() for epilogue in ((), (Gelu(),)))
    own = 3 * 2.0**-24 + 5 * 2.0**-24 * 1.9545
    assert after == pytest.approx(1.13 * plain + own, rel=1e-4)


def test_a_residual_adds_the_rounding_of_its_sum() -> None:
    spec, weights = dense_layer(1, "float32", AddResidual())
    x, residual = np.ones((2, 1), np.float32), np.array([[999.0], [-1.0]], np.float32)
    bound = error_bound(spec, weights, x, residual=residual)[:, 0]
    np.testing.assert_allclose(bound, [1002 * 2.0**-24, 2 * 2.0**-24], rtol=1e-5)


def test_an_inexact_slope_widens_the_bound_by_its_rounding() -> None:
    x = np.array([[-1024]], np.float16)
    exact, rounded = (
        error_bound(*dense_layer(1, "float16", LeakyRelu(slope)), x).item() for slope in (float(np.float16(0.1)), 0.1)
    )
    assert rounded - exact == pytest.approx(1024 * abs(float(np.float16(0.1)) - 0.1), rel=0.01)


def test_an_inexact_constant_widens_the_bound_by_its_rounding() -> None:
    x = np.zeros((1, 1), np.float16)
    spec, weights = dense_layer(1, "float16", Clip(low=0.1))
    constant, stored = abs(float(np.float16(0.1)) - 0.1), 0.1 * 2.0**-11
    assert error_bound(spec, weights, x).item() == pytest.approx(constant + stored, rel=0.01)
    for limit in (0.125, 1e6):
        spec, weights = dense_layer(1, "float16", Clip(low=-limit, high=limit))
        assert error_bound(spec, weights, x).item() < 1e-6
