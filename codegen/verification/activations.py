"""The activations of an epilogue: what they are in float64, and how far off the kernel's arithmetic may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.ir.layer_spec import Activation, Gelu, HardSigmoid, HardSwish, Mish, Sigmoid, Swish, Tanh

Float64Array = NDArray[np.float64]

_UNIT = 2.0**-24
"""Unit roundoff of float32."""
_FLUSHED = 2.0**-126
"""What is below may be zero in the kernel."""
_SQUARE_ROOT_OF_HALF = math.sqrt(0.5)
_complementary_error = np.frompyfunc(math.erfc, 1, 1)


@dataclass(frozen=True)
class Function:
    """An activation, and the error of it in the kernel."""

    definition: Callable[[Float64Array], Float64Array]
    steepest: float
    """The largest slope there is, either way: by so much an error of the argument grows at most."""
    absolute: float
    relative: float
    """Of a float32 argument the kernel's result is off by `absolute`, and `relative` of the exact one, at most.

    That is what the largest errors of all instructions in `operators/steps.py` make together, to first order, with 2.5
    units in the last place for `ex2.approx` and 1 for `rcp.approx`: tests/unit/test_activations.py adds them up.
    """

    def compute(self, v: Float64Array) -> Float64Array:
        """The values at v; where v is infinite or NaN they are what ONNX's definitions make of that."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return self.definition(v)

    def error(self, after: Float64Array, error: Float64Array) -> Float64Array:
        """Error of a result, from that of the argument."""
        grown = self.steepest * error
        with np.errstate(invalid="ignore"):  # of what is not finite
            result: Float64Array = grown + self.absolute + self.relative * (np.abs(after) + grown)
        return result


def function_of(step: Activation) -> Function:
    """The function that a step computes."""
    match step:
        case Sigmoid():
            return Function(_logistic, 0.25, 1.5 * _UNIT, 4 * _UNIT)
        case Swish(alpha):
            return Function(lambda v: v * _logistic(alpha * v), 1.1, 2 * _UNIT / abs(alpha), 5 * _UNIT)
        case HardSigmoid(alpha, beta):
            return Function(lambda v: _within_one(alpha * v + beta), abs(alpha), _of_line(beta), 0.0)
        case HardSwish(alpha, beta):
            reach = (1 + abs(beta)) / abs(alpha)
            return Function(
                lambda v: v * _within_one(alpha * v + beta),
                max(1.0, abs(beta), abs(2 - beta)),
                reach * _of_line(beta),
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


def _of_line(beta: float) -> float:
    """Of alpha v + beta within 0 and 1, its constants and the result rounded."""
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
