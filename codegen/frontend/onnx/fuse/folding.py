"""Folding of constant factors and summands after a product into its weights and biases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codegen.frontend.onnx.extract.weights import Doubles, rounded
from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.layer_spec import DataType


@dataclass(frozen=True, eq=False)
class Affine:
    """The map scale * y + offset, [K] each: one pair per output channel."""

    scale: Doubles
    offset: Doubles

    def after(self, first: Affine) -> Affine:
        """The composition: `first`, then this."""
        with np.errstate(all="ignore"):
            return Affine(self.scale * first.scale, self.scale * first.offset + self.offset)


def batch_normalization(scale: Doubles, shift: Doubles, mean: Doubles, variance: Doubles, epsilon: float) -> Affine:
    """The affine map (y - mean) / sqrt(variance + epsilon) * scale + shift, [K] each."""
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
        return Affine(factor, shift - factor * mean)


def arithmetic(operator: str, constant: Doubles, constant_first: bool) -> Affine | None:
    """The affine map of Add, Sub, Mul or Div with a constant [K]; None for constant / y, which is not affine."""
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


def channel_values(constant: Doubles, outputs: int, rank: int | None, channel_axis: int | None) -> Doubles | None:
    """A constant as [K], if it broadcasts to an output [.. K ..] with one value per channel or one for all; else None.

    `outputs` is K. `channel_axis` is the axis of K, counted from the end if negative, None if the output has none; a
    `rank` of None is unknown.
    """
    if rank is None:
        rank = 1
        channel_axis = channel_axis if channel_axis == -1 else None
    axis = None if channel_axis is None else channel_axis % rank - rank + constant.ndim
    fits = constant.ndim <= rank and all(
        size == 1 or (size == outputs and i == axis) for i, size in enumerate(constant.shape)
    )
    return np.broadcast_to(constant.ravel(), outputs) if fits else None


def folded(kernel: FloatArray, bias: Doubles, alpha: float, affine: Affine, data_type: DataType) -> Weights:
    """The weights of affine(alpha * kernel * x + bias), computed in float64 and rounded once; zeros stay zero.

    The kernel's values must be exact in the data type. Overflow gives infinity.
    """
    with np.errstate(all="ignore"):
        scale = alpha * affine.scale
        weights = kernel  # no copy without a scale, the usual case of the largest weights (fully connected layers)
        if np.any(scale != 1):
            weights = rounded(kernel * scale.reshape(-1, *[1] * (kernel.ndim - 1)), data_type)
        return Weights(weights, rounded(affine.scale * bias + affine.offset, data_type))
