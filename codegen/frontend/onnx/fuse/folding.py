"""What multiplies and adds constants after a product, folded into its weights and biases: values in, values out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codegen.frontend.onnx.extract.weights import Doubles, rounded
from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.layer_spec import DataType


@dataclass(frozen=True, eq=False)
class Affine:
    """scale * y + offset, [K] each: for every kernel its own."""

    scale: Doubles
    offset: Doubles

    def after(self, first: Affine) -> Affine:
        """Both in one: `first`, then this."""
        with np.errstate(all="ignore"):
            return Affine(self.scale * first.scale, self.scale * first.offset + self.offset)


def batch_normalization(scale: Doubles, shift: Doubles, mean: Doubles, variance: Doubles, epsilon: float) -> Affine:
    """(y - mean) / sqrt(variance + epsilon) * scale + shift, [K] each."""
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
        return Affine(factor, shift - factor * mean)


def arithmetic(operator: str, constant: Doubles, constant_first: bool) -> Affine | None:
    """Add, Sub, Mul or Div with a constant [K]; None for constant / y, which cannot be folded."""
    ones, zeros = np.ones_like(constant), np.zeros_like(constant)
    if operator == "Add":
        return Affine(ones, constant)
    if operator == "Mul":
        return Affine(constant, zeros)
    if operator == "Sub":
        return Affine(-ones, constant) if constant_first else Affine(ones, -constant)
    if constant_first:
        return None
    with np.errstate(all="ignore"):
        return Affine(1 / constant, zeros)


def per_kernel(constant: Doubles, kernels: int, rank: int | None, channel_axis: int | None) -> Doubles | None:
    """A constant as [K], if the output [.. K ..] of that rank meets one value of it per kernel, or one for all.

    `channel_axis` is the axis of K, counted from the end if negative, None if the output has none; a `rank` of None is
    not known. None is the answer for any other constant.
    """
    if rank is None:
        rank = 1
        channel_axis = channel_axis if channel_axis == -1 else None
    axis = None if channel_axis is None else channel_axis % rank - rank + constant.ndim
    fits = constant.ndim <= rank and all(
        size == 1 or (size == kernels and i == axis) for i, size in enumerate(constant.shape)
    )
    return np.broadcast_to(constant.ravel(), kernels) if fits else None


def folded(kernel: FloatArray, bias: Doubles, alpha: float, affine: Affine, data_type: DataType) -> Weights:
    """The weights of affine(alpha * kernel * x + bias), computed in float64 and rounded once; zeros stay zeros.

    The kernel's values are those of the data type. Those that are too large for the data type are infinite.
    """
    with np.errstate(all="ignore"):
        scale = alpha * affine.scale
        weights = kernel  # as a rule nothing scales the largest ones, those of fully connected layers
        if np.any(scale != 1):
            weights = rounded(kernel * scale.reshape(-1, *[1] * (kernel.ndim - 1)), data_type)
        return Weights(weights, rounded(affine.scale * bias + affine.offset, data_type))
