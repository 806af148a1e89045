"""Reference: a layer's output in float64, with error bounds of a generated kernel's arithmetic.

A zero weight contributes nothing, since the generated code has no instruction for it: `0 * inf` and `0 * nan` are 0.
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
"""Factor on error bounds that covers the rounding of the float64 reference and of the bound itself."""


def layer_output(
    spec: LayerSpec,
    weights: Weights,
    x: NDArray[Any],
    region: Region = EVERYTHING,
    residual: NDArray[Any] | None = None,
) -> Float64Array:
    """A region of the layer's output, [N, K, H', W'] or [rows, K].

    `x` and `residual` (of the whole output's shape) are arrays of floats, or of uint16 with the bits of bfloat16. For a
    gated layer, give `plain(spec)` and the result of `gated_input` as `x`. Raises ValueError if an array does not have
    the spec's shape, a slice has a step, or a residual is missing or superfluous.
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


@dataclass(frozen=True, eq=False)
class Outcome:
    """One possible result of a correct kernel for each output of a region, with an error bound."""

    possible: NDArray[np.bool_]
    """Outputs that may have this result."""
    value: Float64Array
    """The result in float64."""
    error: Float64Array
    """Largest distance of the kernel's value; infinities and NaN must be exact."""

    def is_met_by(self, got: Float64Array) -> NDArray[np.bool_]:
        """Outputs of `got` that agree with this outcome."""
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
    """The possible results of a correct kernel: first `layer_output` without overflow, then results after an overflow.

    *Rounding.* The error of a sum of n products and a bias, with unit roundoff u after each operation, in any order,
    fused or not, is at most ((1 + u)^(n + 1) - 1) (|w| * |x| + |bias|), plus half a subnormal for each operation that
    underflows (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1; no factor there is a reciprocal, so
    his gamma with n u < 1 is not needed). n is the number of the output channel's non-zero weights. Each rounding step
    of the epilogue adds its own error.

    float32 and bfloat16 layers are computed in float32; bfloat16 is rounded once at the end. In float16 layers, partial
    sums of up to `products_together` products (None: of all) are computed in float16 and added up in float32, where the
    epilogue is computed too, with one rounding at the end. Other types ignore `products_together`.

    *Overflow.* A finite computation becomes infinite only where its exact value exceeds the largest finite value of its
    type, up to rounding. Any partial sum lies between -N, the sum of the negative terms, and P, the sum of the positive
    ones. So an overflow to +inf requires that P plus rounding exceeds the largest value, one to -inf that N does. An
    infinite sum stays infinite, or becomes NaN by meeting the other infinity, which requires both. A finite sum thus
    has met no overflow, and its rounding bound holds as if the type had no largest value: where the exact sum exceeds
    the largest value by more than the rounding, no finite result is correct.

    A step takes an infinity like any value (a Clip makes it finite) and may overflow itself, as may the last rounding,
    such as 70,000 to float16. Flushing subnormals to zero is not covered.
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
    """Outcomes of a max pool: one outcome for windows whose values are certain, one per value for the others."""
    first, *others = found
    certain = windows.combined(first.possible, np.logical_and, nothing=True)
    for other in others:
        certain &= ~windows.combined(other.possible, np.logical_or, nothing=False)
    value = windows.combined(first.value, np.maximum, nothing=-np.inf)
    result = [Outcome(certain, value, windows.combined(first.error, np.maximum, nothing=0.0))]
    if not certain.all():
        # The largest value is one of the window's values, each with any of its outcomes.
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
    """Outcomes of the sums with bias."""
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
    """Sums that may overflow upwards and downwards in some order; `values` are P - N, `magnitudes` P + N."""
    with np.errstate(invalid="ignore"):  # infinite values, for which both may happen
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
    """The outcomes that fit the type, and the infinities in place of those that may overflow it."""
    up = np.zeros(found[0].value.shape, dtype=np.bool_)
    down = up.copy()
    held = []
    for each in found:
        finite = np.isfinite(each.value)
        with np.errstate(invalid="ignore"):  # outcomes that are already infinite
            lowest, highest = each.value - each.error, each.value + each.error
        up |= each.possible & finite & (highest > precision.largest)
        down |= each.possible & finite & (lowest < -precision.largest)
        beyond = finite & ((lowest > precision.largest) | (highest < -precision.largest))
        held.append(replace(each, possible=each.possible & ~beyond))
    return held + _infinities(up, down)


def _apply(step: Step, values: Float64Array, residual: Float64Array | None) -> Float64Array:
    """One step of the epilogue, applied to values and residual of the region."""
    with np.errstate(invalid="ignore"):  # an infinity minus another, or times a slope of zero, is NaN
        if isinstance(step, AddResidual):
            return values + cast("Float64Array", residual)
        if isinstance(step, LeakyRelu):
            return np.where(values < 0, values * step.slope, values)
    if isinstance(step, MaxPool):
        return values  # combines several values, after all other steps
    if not isinstance(step, Clip):
        return function_of(step).compute(values)
    if step.low is not None:
        values = np.maximum(values, step.low)
    if step.high is not None:
        values = np.minimum(values, step.high)
    return values


def _error_of_sum(products: DotProducts, magnitudes: Float64Array, precision: Precision) -> Float64Array:
    """Error bound of sums of products and bias in one type; `magnitudes` include the bias."""
    operations = products.nonzeros + 1
    growth = _growth(operations, precision)
    return growth * magnitudes + operations * (1 + growth) * precision.smallest_subnormal / 2


def _errors_of_partial_sums(
    products: DotProducts, magnitudes: Float64Array, together: int | None
) -> tuple[Float64Array, Float64Array]:
    """Error bounds of partial sums of `together` products (None: all) in float16, and of their float32 sum with bias.

    `magnitudes` exclude the bias.
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
    """Error bound after a step, from the error before it and the step's own rounding at this precision."""
    if isinstance(step, AddResidual):
        error = error + precision.unit_roundoff * (np.abs(after) + error)
    elif isinstance(step, LeakyRelu):
        of_slope = _constant_error(step.slope, data_type)
        with np.errstate(invalid="ignore"):  # infinite values, which have no error
            lowest = np.maximum(error - before, 0)  # magnitude of the lowest negative value
            multiplied = max(1.0, abs(step.slope)) * error + of_slope * lowest
            multiplied += _rounding((abs(step.slope) + of_slope) * lowest, precision)
        error = np.where(lowest == 0, error, multiplied)
    elif not isinstance(step, Clip | MaxPool):
        error = function_of(step).error(before, after, error)
    elif isinstance(step, Clip):
        # The minimum or maximum of a value and a limit moves by at most the larger error of the two. A limit outside
        # the type's range has no effect on a value within it.
        limits = [limit for limit in (step.low, step.high) if limit is not None]
        held = [limit for limit in limits if abs(limit) <= PRECISIONS[data_type].largest]
        error = np.maximum(error, max((_constant_error(limit, data_type) for limit in held), default=0.0))
    return error


def _growth(operations: NDArray[np.int64] | np.int64, precision: Precision) -> Float64Array:
    """(1 + u)^operations - 1"""
    growth: Float64Array = np.expm1(operations * np.log1p(precision.unit_roundoff))
    return growth


def _rounding(magnitudes: Float64Array, precision: Precision) -> Float64Array:
    """Largest rounding error of one value of at most this magnitude."""
    return precision.unit_roundoff * magnitudes + precision.smallest_subnormal / 2


def _constant_error(value: float, data_type: DataType) -> float:
    """Distance of an epilogue constant from its value in the kernel: 0 if the layer's type holds it exactly."""
    return abs(float(to_float32(from_float32(np.array(value, np.float32), data_type), data_type)) - value)


def _residual_region(
    spec: LayerSpec, x: NDArray[Any], region: Region, residual: NDArray[Any] | None
) -> Float64Array | None:
    """The region of the residual as [N, K, H', W']; None if the layer adds none."""
    wanted = any(isinstance(step, AddResidual) for step in spec.epilogue)
    if residual is None:
        if wanted:
            raise ValueError("no residual for a layer that adds one: give it")
        return None
    if not wanted:
        raise ValueError("residual for a layer without one: leave it out")
    shape = (len(x), *spec.output_shape)
    if residual.shape != shape:
        raise ValueError(f"residual of the shape {list(residual.shape)}: the output has {list(shape)}")
    part = to_float64(residual[region.index(residual.ndim)], spec.data_type)
    return part.reshape(*part.shape, *[1] * (4 - part.ndim))


def _without_unit_dimensions(spec: LayerSpec, values: NDArray[Any]) -> NDArray[Any]:
    """The values without the unit dimensions of a Linear, which is computed as 1x1 images."""
    return values.reshape(values.shape[: len(spec.output_shape) + 1])
