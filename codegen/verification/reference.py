"""What a layer computes, in float64, and how far a generated kernel's arithmetic may be from it.

A zero weight contributes nothing, whatever the input: the generated code has no instruction for it. So `0 * inf` and
`0 * nan` count as 0 here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import PRECISIONS, Precision, from_float32, to_float32
from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, DataType, LayerSpec, LeakyRelu, MaxPool, Step, unpooled
from codegen.kernels.output_region import EVERYTHING, Region
from codegen.verification.activations import function_of
from codegen.verification.dot_products import DotProducts, Float64Array, dot_products, to_float64
from codegen.verification.pool_windows import Windows

REFERENCE_SLACK = 1 + 2.0**-20
"""Covers the rounding of the float64 reference and of the bound itself."""


def layer_output(
    spec: LayerSpec,
    weights: Weights,
    x: NDArray[Any],
    region: Region = EVERYTHING,
    residual: NDArray[Any] | None = None,
) -> Float64Array:
    """A region of the layer's output [N, K, H', W'], or [rows, K], from the elements of the input that it needs only.

    `x` and `residual` (of the whole output's shape) are arrays of floats, or of uint16 with the bits of bfloat16. Of a
    gated layer, give `plain(spec)` and what `gated_input` makes of `x`.
    Raises ValueError if one does not have the spec's shape, a slice has a step, or a residual is missing or too much.
    """
    if isinstance(spec, Conv2d) and spec.pool:
        windows = Windows.of(spec, spec.pool, region)
        whole = layer_output(unpooled(spec), weights, x, windows.region)
        return windows.combined(whole, np.maximum, nothing=-np.inf)
    values = dot_products(spec, weights, x, region).values()
    added = _residual_region(spec, x, region, residual)
    for step in spec.epilogue:
        values = _apply(step, values, added)
    return _without_unit_dimensions(spec, values)


def error_bound(
    spec: LayerSpec,
    weights: Weights,
    x: NDArray[Any],
    region: Region = EVERYTHING,
    residual: NDArray[Any] | None = None,
    products_together: int | None = None,
) -> Float64Array:
    """How far each output of the kernel may be from `layer_output`, whose arguments and shape these are.

    Infinite where a value may overflow the type that holds it, or is not finite: `outcomes` says what may come there.
    """
    first, *others = outcomes(spec, weights, x, region, residual, products_together)
    says_nothing = ~np.isfinite(first.value)
    for other in others:
        says_nothing |= other.possible
    return np.where(says_nothing, np.inf, first.error)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a kernel may give for each output of a region, and how exactly."""

    possible: NDArray[np.bool_]
    """Which outputs may come out so."""
    value: Float64Array
    """In float64."""
    error: Float64Array
    """The kernel's may be so far from it; an infinity or a NaN is exact."""

    def is_met_by(self, got: Float64Array) -> NDArray[np.bool_]:
        """Which of these outputs may be of this kind."""
        same = (got == self.value) | (np.isnan(got) & np.isnan(self.value))
        with np.errstate(invalid="ignore"):
            met: NDArray[np.bool_] = self.possible & (same | (np.abs(got - self.value) <= self.error))
        return met


def outcomes(
    spec: LayerSpec,
    weights: Weights,
    x: NDArray[Any],
    region: Region = EVERYTHING,
    residual: NDArray[Any] | None = None,
    products_together: int | None = None,
) -> list[Outcome]:
    """All that a right kernel may give: first `layer_output` where nothing overflows, then what overflows lead to.

    *Rounding.* A sum of n products and the bias, rounded with unit roundoff u after every operation, in any order,
    fused or not, is off by at most ((1 + u)^(n + 1) - 1) (|w| * |x| + |bias|), and half a subnormal for each operation
    that underflows (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1; no factor there is a
    reciprocal, so that his gamma and its n u < 1 are not needed). n is the number of the kernel's non-zero weights.
    Each step of the epilogue that rounds adds its rounding.

    float32 is computed in float32; bfloat16 too, and rounded once at the end. Of float16, sums of up to
    `products_together` products, or of all, are computed in float16; these are added up in float32, where all that
    follows is computed too, and rounded once at the end. For the other types `products_together` means nothing.

    *Overflow.* What is computed from finite numbers becomes infinite only where it is, but for rounding, beyond the
    largest finite value of its type. A sum of some of the terms, in whatever order they come, lies between that of the
    negative terms, -N, and that of the positive ones, P. So an overflow to +inf needs P and the rounding to exceed the
    largest value, one to -inf needs N to. Once infinite a sum stays so, or becomes NaN if it meets the other infinity,
    which needs both. That is why a finite sum has met no overflow, and the bound on its rounding holds for it as if the
    type had no largest value: where the exact sum is beyond that by more than the rounding, no finite one is right.

    A step takes an infinity as it takes any value (a Clip makes a finite one of it), and may overflow itself; so may
    the last rounding, as of 70,000 to float16. Flushing subnormals to zero is not covered.
    """
    if isinstance(spec, Conv2d) and spec.pool:
        windows = Windows.of(spec, spec.pool, region)
        return _pooled(outcomes(unpooled(spec), weights, x, windows.region, None, products_together), windows)
    products = dot_products(spec, weights, x, region)
    added = _residual_region(spec, x, region, residual)
    single, stored = PRECISIONS["float32"], PRECISIONS[spec.data_type]
    found = _sums(products, spec.data_type, products_together)
    for step in spec.epilogue:
        found = _overflowing([_after(step, each, added, single, spec.data_type) for each in found], single)
    if stored is not single:
        found = _overflowing([_rounded(each, stored) for each in found], stored)
    return [_final(spec, each) for each in found]


def _pooled(found: list[Outcome], windows: Windows) -> list[Outcome]:
    """What the largest values of windows may be: that of the first outcomes, where nothing else is possible."""
    first, *others = found
    certain = windows.combined(first.possible, np.logical_and, nothing=True)
    for other in others:
        certain &= ~windows.combined(other.possible, np.logical_or, nothing=False)
    value = windows.combined(first.value, np.maximum, nothing=-np.inf)
    result = [Outcome(certain, value, windows.combined(first.error, np.maximum, nothing=0.0))]
    if not certain.all():
        # The largest is one of those of the window, whatever that has come out as.
        for each in found:
            parts = zip(
                windows.places(each.possible, nothing=False),
                windows.places(each.value, nothing=-np.inf),
                windows.places(each.error, nothing=0.0),
                strict=True,
            )
            result += [Outcome(~certain & possible, value, error) for possible, value, error in parts]
    return result


def _rounded(outcome: Outcome, precision: Precision) -> Outcome:
    error = outcome.error + _rounding(np.abs(outcome.value) + outcome.error, precision)
    return replace(outcome, error=error)


def _final(spec: LayerSpec, outcome: Outcome) -> Outcome:
    error = np.where(np.isfinite(outcome.value), outcome.error * REFERENCE_SLACK, 0.0)
    possible, value, error = (_without_unit_dimensions(spec, each) for each in (outcome.possible, outcome.value, error))
    return Outcome(possible, value, error)


def _sums(products: DotProducts, data_type: DataType, together: int | None) -> list[Outcome]:
    """The sums with their bias."""
    single, half = PRECISIONS["float32"], PRECISIONS["float16"]
    bias = products.bias[:, None, None]
    values, magnitudes = products.values(), products.magnitudes()
    if data_type == "float16":
        partial, error = _errors_of_partial_sums(products, magnitudes, together)
        up, down = _reach(values - bias, magnitudes, partial, half)
    else:
        error = _error_of_sum(products, magnitudes + np.abs(bias), single)
        up = down = np.zeros(values.shape, dtype=np.bool_)
    over, under = _reach(values, magnitudes + np.abs(bias), error, single)
    exact = Outcome(np.ones(values.shape, dtype=np.bool_), values, error)
    return [*_overflowing([exact], single), *_infinities(up | over, down | under)]


def _reach(
    values: Float64Array, magnitudes: Float64Array, error: Float64Array, precision: Precision
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which sums may overflow on their way, upwards and downwards; from P - N and P + N."""
    with np.errstate(invalid="ignore"):  # of what is not finite, where nobody knows
        positive, negative = (magnitudes + values) / 2, (magnitudes - values) / 2
        return ~(positive + error <= precision.largest), ~(negative + error <= precision.largest)


def _infinities(up: NDArray[np.bool_], down: NDArray[np.bool_]) -> list[Outcome]:
    kinds = ((up, np.inf), (down, -np.inf), (up & down, np.nan))
    return [Outcome(where, np.full(where.shape, value), np.zeros(where.shape)) for where, value in kinds if where.any()]


def _after(
    step: Step, outcome: Outcome, residual: Float64Array | None, precision: Precision, data_type: DataType
) -> Outcome:
    value = _apply(step, outcome.value, residual)
    error = _error_of_step(step, outcome.value, value, outcome.error, precision, data_type)
    return Outcome(outcome.possible, value, np.where(np.isfinite(value), error, 0.0))


def _overflowing(found: list[Outcome], precision: Precision) -> list[Outcome]:
    """These, as far as the type may hold them, and what becomes of those that it may not."""
    up = np.zeros(found[0].value.shape, dtype=np.bool_)
    down = up.copy()
    held = []
    for each in found:
        finite = np.isfinite(each.value)
        with np.errstate(invalid="ignore"):  # of those that are infinite already
            lowest, highest = each.value - each.error, each.value + each.error
        up |= each.possible & finite & (highest > precision.largest)
        down |= each.possible & finite & (lowest < -precision.largest)
        beyond = finite & ((lowest > precision.largest) | (highest < -precision.largest))
        held.append(replace(each, possible=each.possible & ~beyond))
    return held + _infinities(up, down)


def _apply(step: Step, values: Float64Array, residual: Float64Array | None) -> Float64Array:
    """One step of the epilogue, on values and residual of the region."""
    with np.errstate(invalid="ignore"):  # an infinity minus another, or times a slope of zero, is NaN
        if isinstance(step, AddResidual):
            return values + cast("Float64Array", residual)
        if isinstance(step, LeakyRelu):
            return np.where(values < 0, values * step.slope, values)
    if isinstance(step, MaxPool):
        return values  # it combines several, behind all other steps
    if not isinstance(step, Clip):
        return function_of(step).compute(values)
    if step.low is not None:
        values = np.maximum(values, step.low)
    if step.high is not None:
        values = np.minimum(values, step.high)
    return values


def _error_of_sum(products: DotProducts, magnitudes: Float64Array, precision: Precision) -> Float64Array:
    """Error of products and bias added up in one type; `magnitudes` are those of both."""
    operations = products.nonzeros + 1
    growth = _growth(operations, precision)
    return growth * magnitudes + operations * (1 + growth) * precision.smallest_subnormal / 2


def _errors_of_partial_sums(
    products: DotProducts, magnitudes: Float64Array, together: int | None
) -> tuple[Float64Array, Float64Array]:
    """Error of sums of at most so many products in float16; and once these are added up in float32 with the bias.

    None: of all. `magnitudes` are those of the products.
    """
    half, single = PRECISIONS["float16"], PRECISIONS["float32"]
    most = products.nonzeros if together is None else np.minimum(products.nonzeros, together)
    growth = _growth(most, half)
    error = growth * magnitudes + products.nonzeros * (1 + growth) * half.smallest_subnormal / 2
    summed = magnitudes + error + np.abs(products.bias)[:, None, None]
    return error, error + _growth(products.nonzeros + 1, single) * summed


def _error_of_step(
    step: Step,
    before: Float64Array,
    after: Float64Array,
    error: Float64Array,
    precision: Precision,
    data_type: DataType,
) -> Float64Array:
    """The error after a step, of what comes before it and of the step itself, computed in a type of this precision."""
    if isinstance(step, AddResidual):
        error = error + precision.unit_roundoff * (np.abs(after) + error)
    elif isinstance(step, LeakyRelu):
        of_slope = _constant_error(step.slope, data_type)
        with np.errstate(invalid="ignore"):  # of what is not finite, which has no error
            lowest = np.maximum(error - before, 0)  # how far below zero the kernel's value may be: there it multiplies
            multiplied = max(1.0, abs(step.slope)) * error + of_slope * lowest
            multiplied += _rounding((abs(step.slope) + of_slope) * lowest, precision)
        error = np.where(lowest == 0, error, multiplied)
    elif not isinstance(step, Clip | MaxPool):
        error = function_of(step).error(after, error)
    elif isinstance(step, Clip):
        # The smaller or larger of a value and a limit moves by no more than the one of the two that moves most. A limit
        # that the type cannot hold has no effect on a value that it can.
        limits = [limit for limit in (step.low, step.high) if limit is not None]
        held = [limit for limit in limits if abs(limit) <= PRECISIONS[data_type].largest]
        error = np.maximum(error, max((_constant_error(limit, data_type) for limit in held), default=0.0))
    return error


def _growth(operations: NDArray[np.int64] | np.int64, precision: Precision) -> Float64Array:
    """(1 + u)^operations - 1"""
    growth: Float64Array = np.expm1(operations * np.log1p(precision.unit_roundoff))
    return growth


def _rounding(magnitudes: Float64Array, precision: Precision) -> Float64Array:
    """The largest error of rounding one value of up to this magnitude."""
    return precision.unit_roundoff * magnitudes + precision.smallest_subnormal / 2


def _constant_error(value: float, data_type: DataType) -> float:
    """How far a constant of the epilogue is from what the kernel has of it: 0 if it is of the layer's type."""
    return abs(float(to_float32(from_float32(np.array(value, np.float32), data_type), data_type)) - value)


def _residual_region(
    spec: LayerSpec, x: NDArray[Any], region: Region, residual: NDArray[Any] | None
) -> Float64Array | None:
    """The region of the residual as [N, K, H', W']; None if the layer adds none."""
    wanted = any(isinstance(step, AddResidual) for step in spec.epilogue)
    if residual is None:
        if wanted:
            raise ValueError("no residual for a layer that adds one: give the layer's second input")
        return None
    if not wanted:
        raise ValueError("a residual for a layer that adds none: leave it out")
    shape = (len(x), *spec.output_shape)
    if residual.shape != shape:
        raise ValueError(f"a residual of the shape {list(residual.shape)} for an output of {list(shape)}")
    part = to_float64(residual[region.index(residual.ndim)], spec.data_type)
    return part.reshape(*part.shape, *[1] * (4 - part.ndim))


def _without_unit_dimensions(spec: LayerSpec, values: NDArray[Any]) -> NDArray[Any]:
    """The values of a Linear, which is computed as images of one element, without those dimensions."""
    return values.reshape(values.shape[: len(spec.output_shape) + 1])
