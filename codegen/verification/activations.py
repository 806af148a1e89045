"""Functions of an epilogue in float64, with error bounds of the kernel's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.ir.layer_spec import Activation, Gelu, HardSigmoid, HardSwish, Mish, Quantize, Scale, Sigmoid, Swish, Tanh

Float64Array = NDArray[np.float64]

_UNIT = 2.0**-24
"""Unit roundoff of float32."""
_FLUSHED = 2.0**-126
"""Smallest normal float32; the kernel may flush smaller values to zero."""
_SQUARE_ROOT_OF_HALF = math.sqrt(0.5)
_complementary_error = np.frompyfunc(math.erfc, 1, 1)


@dataclass(frozen=True)
class Function:
    """A function of one value with an error bound of the kernel's arithmetic."""

    definition: Callable[[Float64Array], Float64Array]
    steepest: float
    """Largest magnitude of the slope, by which an error of the argument grows at most. Not for staircases."""
    absolute: float
    relative: float
    """For an exact float32 argument, the kernel's error is at most `absolute` plus `relative` times the exact result.

    The bound is the sum, to first order, of the largest errors of all instructions in `kernels/epilogue_ptx.py`, with
    2.5 units in the last place for `ex2.approx` and 1 for `rcp.approx`. tests/unit/test_activations.py adds them up.
    """
    is_staircase: bool = False
    """Whether it jumps, but never falls: the argument's error, three roundings included, may move it by a step."""

    def compute(self, v: Float64Array) -> Float64Array:
        """The values at v; infinities and NaN follow ONNX's definitions."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return self.definition(v)

    def error(self, before: Float64Array, after: Float64Array, error: Float64Array) -> Float64Array:
        """Error bound of the results `after`, from the arguments and their error bound."""
        grown = self.steepest * error
        if self.is_staircase:
            reach = np.where(np.isfinite(before), error + 3 * _UNIT * (np.abs(before) + error), 0.0)
            with np.errstate(invalid="ignore"):  # NaN
                grown = np.maximum(self.compute(before + reach) - after, after - self.compute(before - reach))
        with np.errstate(invalid="ignore"):  # infinite values
            result: Float64Array = grown + self.absolute + self.relative * (np.abs(after) + grown)
        return result


def function_of(step: Activation | Scale | Quantize) -> Function:
    """The function of a step that has no bounds of its own."""
    match step:
        case Scale(factor, shift):
            return Function(lambda v: factor * v + shift, abs(factor), _FLUSHED, _UNIT)
        case Quantize(scale, low, high):
            return Function(lambda v: scale * np.clip(np.rint(v / scale), low, high), 0.0, _FLUSHED, _UNIT, True)
        case Sigmoid():
            return Function(_logistic, 0.25, 1.5 * _UNIT, 4 * _UNIT)
        case Swish(alpha):
            return Function(lambda v: v * _logistic(alpha * v), 1.1, 2 * _UNIT / abs(alpha), 5 * _UNIT)
        case HardSigmoid(alpha, beta):
            return Function(lambda v: _within_one(alpha * v + beta), abs(alpha), _line_error(beta), 0.0)
        case HardSwish(alpha, beta):
            reach = (1 + abs(beta)) / abs(alpha)
            return Function(
                lambda v: v * _within_one(alpha * v + beta),
                max(1.0, abs(beta), abs(2 - beta)),
                reach * _line_error(beta),
                2 * _UNIT,
            )
        case Gelu("tanh"):
            return Function(_gelu_by_tanh, 1.13, 1.5 * _UNIT, 5 * _UNIT)
        case Gelu():
            return Function(_gelu, 1.13, 3 * _UNIT, 5 * _UNIT)
        case Tanh():
            return Function(np.tanh, 1.0, _FLUSHED, 16 * _UNIT)
        case Mish():
            return Function(_mish, 1.1, 3 * _UNIT, 6 * _UNIT)


def _line_error(beta: float) -> float:
    """Absolute error of alpha v + beta clipped to 0 and 1, with constants and result rounded."""
    return (2 + 2 * abs(beta)) * _UNIT + _FLUSHED


def _logistic(v: Float64Array) -> Float64Array:
    result: Float64Array = 1 / (1 + np.exp(-v))
    return result


def _within_one(v: Float64Array) -> Float64Array:
    return np.minimum(np.maximum(v, 0), 1)


def _gelu(v: Float64Array) -> Float64Array:
    return v * 0.5 * np.asarray(_complementary_error(-v * _SQUARE_ROOT_OF_HALF), np.float64)


def _gelu_by_tanh(v: Float64Array) -> Float64Array:
    return v * _logistic(2 * math.sqrt(2 / math.pi) * v * (1 + 0.044715 * v * v))


def _mish(v: Float64Array) -> Float64Array:
    e = np.exp(np.minimum(v, 40))
    gate: Float64Array = e * (e + 2) / (e * (e + 2) + 2)
    return v * gate
