"""What a layer computes, in NumPy, and how far float32 arithmetic may be from it.

A zero weight contributes nothing, whatever the input: the generated code has no instruction for it. So `0 * inf` and
`0 * nan` count as 0 here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from codegen.layers import Weights
from codegen.spec import Conv2d

EVERYTHING = slice(None)
UNIT_ROUNDOFF = 2.0**-24
SMALLEST_SUBNORMAL = 2.0**-149
REFERENCE_SLACK = 1 + 2.0**-20
"""Covers the rounding of the float64 reference and of the bound itself."""


def convolve(spec: Conv2d, weights: Weights, x: NDArray[Any], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """The layer's output [N, K, H', W'] for an input [N, C, H, W], bias included, computed in `dtype`."""
    return convolve_region(spec, weights, x, EVERYTHING, EVERYTHING, EVERYTHING, dtype)


def convolve_region(
    spec: Conv2d,
    weights: Weights,
    x: NDArray[Any],
    rows: slice,
    columns: slice,
    kernels: slice,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """A box of the output, as `convolve(...)[:, kernels, rows, columns]`, from the input elements that it needs only.

    Raises ValueError if the input does not have the spec's shape or a slice has a step.
    """
    patch = _patch(spec, x, rows, columns).astype(dtype)
    return _apply(spec, weights.kernel[kernels].astype(dtype), weights.bias[kernels].astype(dtype), patch)


def error_bound(spec: Conv2d, weights: Weights, x: NDArray[Any]) -> NDArray[np.float64]:
    """How far each float32 output may be from `convolve`, whatever the order of the sum, fused or not: [N, K, H', W'].

    gamma_n (|w| * |x| + |bias|) with gamma_n = n u / (1 - n u), u = 2^-24 and n the non-zero weights of the output's
    kernel + 1 (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), and n subnormals for underflow.
    Infinite where the sum may overflow or is not finite. Flushing subnormals to zero is not covered.
    """
    return error_bound_region(spec, weights, x, EVERYTHING, EVERYTHING, EVERYTHING)


def error_bound_region(
    spec: Conv2d, weights: Weights, x: NDArray[Any], rows: slice, columns: slice, kernels: slice
) -> NDArray[np.float64]:
    """A box of the error bound, as `error_bound(...)[:, kernels, rows, columns]`."""
    patch = np.abs(_patch(spec, x, rows, columns).astype(np.float64))
    kernel = np.abs(weights.kernel[kernels].astype(np.float64))
    sums = _apply(spec, kernel, np.abs(weights.bias[kernels].astype(np.float64)), patch)
    terms = np.count_nonzero(kernel, axis=(1, 2, 3))[:, None, None] + 1.0
    gamma = terms * UNIT_ROUNDOFF / (1 - terms * UNIT_ROUNDOFF)
    bound: NDArray[np.float64] = (gamma * sums + terms * SMALLEST_SUBNORMAL) * REFERENCE_SLACK
    bound[~(sums + bound <= np.finfo(np.float32).max)] = np.inf
    return bound


def _patch(spec: Conv2d, x: NDArray[Any], rows: slice, columns: slice) -> NDArray[Any]:
    """The padded input elements that rows and columns of the output read."""
    if x.ndim != 4 or x.shape[1:] != spec.input_shape:
        raise ValueError(f"an input of the shape {list(x.shape)} for a layer of {['N', *spec.input_shape]}")
    top, left, _, _ = spec.padding
    first_y, last_y = _reach(rows, spec.output_height, spec.stride[0], top, spec.kernel_height)
    first_x, last_x = _reach(columns, spec.output_width, spec.stride[1], left, spec.kernel_width)
    inside = x[:, :, max(first_y, 0) : max(last_y, 0), max(first_x, 0) : max(last_x, 0)]
    around_y = _around(first_y, last_y, spec.height)
    around_x = _around(first_x, last_x, spec.width)
    return np.pad(inside, ((0, 0), (0, 0), around_y, around_x))


def _reach(part: slice, outputs: int, stride: int, padding: int, extent: int) -> tuple[int, int]:
    """First input element that a part of an output dimension reads, and one past the last; outside is padding."""
    start, stop, step = part.indices(outputs)
    if step != 1:
        raise ValueError(f"a part of the output with step {step}: give a slice without a step")
    if stop <= start:
        return 0, 0
    return start * stride - padding, (stop - 1) * stride - padding + extent


def _around(first: int, last: int, size: int) -> tuple[int, int]:
    """How many elements of first..last lie before and after 0..size."""
    before = min(max(-first, 0), last - first)
    return before, min(max(last - size, 0), last - first - before)


def _apply(spec: Conv2d, kernel: NDArray[Any], bias: NDArray[Any], patch: NDArray[Any]) -> NDArray[Any]:
    """The outputs of a padded patch; an infinity or NaN of it reaches an output through non-zero weights only."""
    finite = np.isfinite(patch)
    sums: NDArray[Any] = _sum_taps(spec, kernel, np.where(finite, patch, 0)) + bias[:, None, None]
    if finite.all():
        return sums
    positive, negative = (kernel > 0).astype(patch.dtype), (kernel < 0).astype(patch.dtype)
    up, down, nan = (where.astype(patch.dtype) for where in (patch == np.inf, patch == -np.inf, np.isnan(patch)))
    to_up = _sum_taps(spec, positive, up) + _sum_taps(spec, negative, down) > 0
    to_down = _sum_taps(spec, positive, down) + _sum_taps(spec, negative, up) > 0
    to_nan = _sum_taps(spec, positive + negative, nan) > 0
    sums[to_up] = np.inf
    sums[to_down] = -np.inf
    sums[to_nan | (to_up & to_down)] = np.nan
    return sums


def _sum_taps(spec: Conv2d, kernel: NDArray[Any], patch: NDArray[Any]) -> NDArray[Any]:
    """Direct convolution, one position of the kernel at a time: memory of a few outputs, not of an im2col."""
    stride_y, stride_x = spec.stride
    height = max(patch.shape[2] - spec.kernel_height, -1) // stride_y + 1
    width = max(patch.shape[3] - spec.kernel_width, -1) // stride_x + 1
    sums = np.zeros((len(kernel), len(patch), height, width), patch.dtype)
    for r in range(spec.kernel_height):
        for s in range(spec.kernel_width):
            ys = slice(r, r + (height - 1) * stride_y + 1, stride_y)
            xs = slice(s, s + (width - 1) * stride_x + 1, stride_x)
            if height and width and kernel[:, :, r, s].any():
                sums += np.tensordot(kernel[:, :, r, s], patch[:, :, ys, xs], axes=(1, 1))
    return np.moveaxis(sums, 0, 1)
