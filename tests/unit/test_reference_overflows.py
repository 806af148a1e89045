"""Overflow of sums: no error bound, and the few outcomes of a correct kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.layer_spec import AddResidual, Clip, DataType, LayerSpec, LeakyRelu
from codegen.verification.reference import layer_output, outcomes
from tests.error_bounds import error_bound
from tests.unit.any_order import Arithmetic, computed_output, dense_layer, each_arithmetic


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
@pytest.mark.parametrize("epilogue", [(), (Clip(0, 6),), (LeakyRelu(0.0),), (AddResidual(),)], ids=str)
def test_the_bound_says_nothing_where_the_sum_may_overflow(value: float, epilogue: tuple[Any, ...]) -> None:
    spec, weights = dense_layer(3, "float32", *epilogue)
    x = np.array([[value, value, 0], [-value, -value, 0], [value, value, -value]], np.float32)
    residual = np.zeros((3, 1), np.float32) if AddResidual() in epilogue else None
    assert np.isinf(error_bound(spec, weights, x, residual=residual)).all()


@pytest.mark.parametrize("together", [None, 2])
def test_float16_overflows_beyond_its_largest_value(together: int | None) -> None:
    spec, weights = dense_layer(3, "float16", AddResidual())
    x = np.array([[60000, -60000, 0], [40000, 40000, -40000], [30000, 0, 0], [30000, 0, 0]], np.float16)
    residual = np.array([[0], [0], [30000], [40000]], np.float16)
    bound = error_bound(spec, weights, x, residual=residual, products_together=together)
    np.testing.assert_array_equal(np.isinf(bound[:, 0]), [False, True, False, True])


@pytest.mark.parametrize("step", [AddResidual(), LeakyRelu(4.0)], ids=str)
def test_a_clip_does_not_hide_an_overflow_before_it(step: Any) -> None:
    spec, weights = dense_layer(1, "float32", step, Clip(-6, 6))
    x = np.array([[-2e38], [-5e37]], np.float32)
    residual = x if step == AddResidual() else None
    np.testing.assert_array_equal(np.isinf(error_bound(spec, weights, x, residual=residual)), [[True], [False]])


def test_what_follows_the_sums_of_float16_does_not_overflow_in_float16() -> None:
    spec, weights = dense_layer(1, "float16", LeakyRelu(4.0), Clip(-6, 6))
    assert error_bound(spec, weights, np.array([[-40000]], np.float16)).item() < 100


def test_an_infinite_residual_has_no_bound() -> None:
    spec, weights = dense_layer(1, "float32", AddResidual())
    residual = np.array([[np.inf], [np.nan], [1]], np.float32)
    bound = error_bound(spec, weights, np.ones((3, 1), np.float32), residual=residual)
    np.testing.assert_array_equal(np.isinf(bound[:, 0]), [True, True, False])


def test_terms_that_cancel_cannot_overflow_as_long_as_neither_side_alone_does() -> None:
    spec, weights = dense_layer(4, "float32")
    x = np.array([[3e38, -3e38, 1e30, 0], [3e38, -3e38, 1e38, 0]], np.float32)
    np.testing.assert_array_equal(np.isinf(error_bound(spec, weights, x)), [[False], [True]])


LARGEST = {"float32": 3.4028235e38, "float16": 65504.0, "bfloat16": 3.3895314e38}


def allowed(spec: LayerSpec, weights: Weights, x: Any, got: float, residual: Any = None, **options: Any) -> bool:
    """Whether a correct kernel may give this value for the layer's one output."""
    x = from_float32(np.array([x], np.float32), spec.data_type)
    added = None if residual is None else from_float32(np.array([[residual]], np.float32), spec.data_type)
    return any(
        each.is_met_by(np.array([[got]])).item() for each in outcomes(spec, weights, x, residual=added, **options)
    )


@pytest.mark.parametrize("data_type", list(LARGEST))
def test_a_sum_beyond_the_largest_value_must_be_infinite(data_type: DataType) -> None:
    spec, weights = dense_layer(2, data_type)
    large = 0.9 * LARGEST[data_type]
    for sign in (1, -1):
        terms = [sign * large, sign * large]
        assert allowed(spec, weights, terms, sign * np.inf)
        for wrong in (-sign * np.inf, np.nan, sign * LARGEST[data_type], 0.0):
            assert not allowed(spec, weights, terms, wrong)


@pytest.mark.parametrize("data_type", list(LARGEST))
def test_a_finite_sum_may_overflow_only_where_terms_of_one_sign_do(data_type: DataType) -> None:
    spec, weights = dense_layer(3, data_type)
    large = 0.75 * LARGEST[data_type]
    terms = [large, large, -large]
    exact = layer_output(spec, weights, from_float32(np.array([terms], np.float32), data_type)).item()
    assert allowed(spec, weights, terms, exact)
    assert allowed(spec, weights, terms, np.inf)
    for wrong in (-np.inf, np.nan, 0.5 * exact, -exact):
        assert not allowed(spec, weights, terms, wrong)


def test_a_sum_whose_both_sides_overflow_may_be_anything_but_another_number() -> None:
    spec, weights = dense_layer(4, "float32")
    terms = [3e38, 3e38, -3e38, -2e38]
    assert all(allowed(spec, weights, terms, right) for right in (1e38, np.inf, -np.inf, np.nan))
    assert not allowed(spec, weights, terms, 2e38)


def test_a_sum_of_float16_overflows_on_its_way_though_it_fits_float32() -> None:
    spec, weights = dense_layer(4, "float16", Clip(high=6.0))
    terms = [40000, 40000, -60000, -20000]
    for together in (2, None):
        given = [allowed(spec, weights, terms, got, products_together=together) for got in (0, 6, np.inf, 40000, -1000)]
        assert given == [True, True, False, False, False]
    assert not allowed(*dense_layer(4, "float16"), [60000, -60000, 0, 0], np.inf)


@pytest.mark.parametrize(
    ("epilogue", "right", "wrong"),
    [
        ((Clip(-6, 6),), (6.0,), (-6.0, 0.0, np.inf, np.nan)),
        ((LeakyRelu(0.5),), (np.inf,), (-np.inf, np.nan, 3e38)),
        ((AddResidual(),), (np.inf,), (-np.inf, np.nan, 3e38)),
        ((Clip(-6, 6), AddResidual()), (6.0 - 1e38,), (6.0, np.inf)),
        ((Clip(-6, 6), AddResidual(), LeakyRelu(8.0)), (-np.inf,), (8 * (6.0 - 1e38), np.inf, np.nan)),
    ],
    ids=str,
)
def test_an_infinity_goes_through_the_steps_that_follow(
    epilogue: tuple[Any, ...], right: tuple[float, ...], wrong: tuple[float, ...]
) -> None:
    spec, weights = dense_layer(2, "float32", *epilogue)
    residual = -1e38 if AddResidual() in epilogue else None
    assert all(allowed(spec, weights, [3e38, 3e38], each, residual) for each in right)
    assert not any(allowed(spec, weights, [3e38, 3e38], each, residual) for each in wrong)


def test_minus_infinity_times_a_slope_of_zero_is_no_number() -> None:
    spec, weights = dense_layer(2, "float32", LeakyRelu(0.0))
    assert allowed(spec, weights, [-3e38, -3e38], np.nan)
    assert not any(allowed(spec, weights, [-3e38, -3e38], wrong) for wrong in (np.inf, -np.inf, 1.0))


@each_arithmetic
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**6), epilogue=st.sampled_from([(), (Clip(-6, 6),), (LeakyRelu(3.0), AddResidual())]))
def test_whatever_overflows_in_whatever_order_the_result_is_allowed(
    arithmetic: Arithmetic, seed: int, epilogue: tuple[Any, ...]
) -> None:
    rng = np.random.default_rng(seed)
    spec, _ = dense_layer(5, arithmetic.data_type, *epilogue)
    largest = LARGEST[spec.data_type]
    values = rng.uniform(-1, 1, 7).astype(np.float32) * np.float32(largest)
    held = to_float32(from_float32(values, spec.data_type), spec.data_type)
    weights = Weights(rng.choice(np.array([0, 0.5, 1, -1, 2], np.float32), (1, 5)), held[:1])
    x = from_float32(held[None, 1:6], spec.data_type)
    residual = from_float32(held[None, 6:], spec.data_type) if AddResidual() in epilogue else None
    with np.errstate(all="ignore"):
        got = computed_output(spec, weights, x, residual, (0, 0), arithmetic, rng)
    found = outcomes(spec, weights, x, residual=residual, products_together=arithmetic.together)
    assert any(each.is_met_by(np.array([[got]])).item() for each in found), got
