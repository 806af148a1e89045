"""Layers computed in random orders of summation, rounded after every operation, as some kernel might."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.layer_spec import AddResidual, Clip, DataType, LayerSpec, LeakyRelu, Linear, Quantize, Scale
from codegen.verification.activations import function_of
from tests.unit.layer_definitions import terms


def dense_layer(inputs: int, data_type: DataType, *epilogue: Any) -> tuple[Linear, Weights]:
    spec = Linear(inputs, 1, epilogue, data_type)
    return spec, Weights(np.ones((1, inputs), np.float32), np.zeros(1, np.float32))


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic of a kernel: partial sums of `together` products in one type, the rest in another."""

    data_type: DataType
    together: int | None = None

    @property
    def products(self) -> type[np.floating[Any]]:
        return np.float16 if self.data_type == "float16" else np.float32

    @property
    def rest(self) -> type[np.floating[Any]]:
        return np.float32


ARITHMETICS = [
    Arithmetic("float32"),
    Arithmetic("bfloat16"),
    Arithmetic("float16"),
    Arithmetic("float16", 1),
    Arithmetic("float16", 2),
    Arithmetic("float16", 64),
]
each_arithmetic = pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=str)


def sum_in_any_order(values: Sequence[Any], rng: np.random.Generator) -> Any:
    """The sum of numbers of one type, by adding random pairs."""
    left = list(values)
    while len(left) > 1:
        a, b = (left.pop(int(rng.integers(len(left)))) for _ in range(2))
        left.append(a + b)
    return left[0]


def fused_sum(start: Any, factors: Sequence[tuple[Any, Any]], rng: np.random.Generator) -> Any:
    """A chain of fused multiply-adds in the type of `start`, in random order."""
    for i in rng.permutation(len(factors)):
        a, b = factors[i]
        start = type(start)(float(a) * float(b) + float(start))
    return start


def computed_output(
    spec: LayerSpec,
    weights: Weights,
    x: NDArray[Any],
    residual: NDArray[Any] | None,
    place: tuple[int, ...],
    arithmetic: Arithmetic,
    rng: np.random.Generator,
) -> float:
    """One output, rounded after every operation, in a random order, fused or not."""
    narrow, wide = arithmetic.products, arithmetic.rest
    wide_x = to_float32(x, spec.data_type)
    factors = [(narrow(weight), narrow(element)) for _, weight, element in terms(spec, weights, wide_x, place)]
    runs = []
    while factors:
        length = int(rng.integers(arithmetic.together) + 1) if arithmetic.together else len(factors)
        runs.append(factors[:length])
        factors = factors[length:]
    bias, fused = wide(weights.bias[place[1]]), bool(rng.integers(2))
    if fused:
        sums = [fused_sum(narrow(0), run, rng) for run in runs]
    else:
        sums = [sum_in_any_order([a * b for a, b in run], rng) for run in runs]
    value = sum_in_any_order([*map(wide, sums), bias], rng)
    for step in spec.epilogue:
        if isinstance(step, AddResidual):
            assert residual is not None
            value = value + wide(to_float32(residual[place], spec.data_type))
        elif isinstance(step, LeakyRelu):
            value = value * wide(step.slope) if value < 0 else value
        elif isinstance(step, Scale):
            value = value * wide(step.factor) + wide(step.shift)
        elif isinstance(step, Quantize):
            value = wide(np.rint(np.clip(value * wide(1 / step.scale), step.low, step.high))) * wide(step.scale)
        elif not isinstance(step, Clip):
            function = function_of(step)
            exact = function.compute(np.array(value, np.float64))
            value = wide(exact + rng.uniform(-0.9, 0.9) * function.error(np.float64(value), exact, np.zeros(())))
        else:
            value = value if step.low is None else max(value, wide(step.low))
            value = value if step.high is None else min(value, wide(step.high))
    return float(to_float32(from_float32(np.array(value, np.float32), spec.data_type), spec.data_type))
