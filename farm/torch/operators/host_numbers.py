"""ONNX operators on shapes: integers in Python, which torch.compile and torch.export follow with an open batch size.

A value is an integer or truth, a list of them, or a tensor on the CPU: all others, and all others' results.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from farm.torch.operators.host_values import OF_SHAPES
from farm.torch.operators.table import OPERATORS, PARAMETERS

Value: TypeAlias = Any
_CASTS = (6, 7)
"""ONNX's numbers of int32 and int64, which are both integers in Python."""


def on_host(name: str) -> Callable[..., Value]:
    """The operator with this name in ONNX on values on the CPU."""
    of_integers, parameters = _OF_INTEGERS.get(name), PARAMETERS.get(name, ())

    def apply(*inputs: Value, **attributes: Any) -> Value:
        if of_integers and (name in OF_SHAPES or not any(isinstance(each, torch.Tensor) for each in inputs)):
            found = of_integers(*inputs, **attributes)
            if found is not None:
                return found
        given = (each if i in parameters else _as_tensor(each) for i, each in enumerate(inputs))
        return as_value(OPERATORS[name](*given, **attributes))

    return apply


def as_value(x: Value) -> Value:
    """Integers in Python if the operand is a tensor that is a scalar or vector of integers."""
    of_integers = isinstance(x, torch.Tensor) and x.ndim <= 1 and x.dtype in (torch.int32, torch.int64)
    return x.tolist() if of_integers else x


def _as_tensor(value: Value) -> torch.Tensor | None:
    if value is None or isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.int64 if value == [] else None)


def _shape(x: Value, start: int = 0, end: int | None = None, **_: Any) -> Value:
    sizes = list(x.shape) if isinstance(x, torch.Tensor) else [len(x)] if isinstance(x, list) else []
    return sizes[start:end]


def _gather(values: Value, index: Value, **_: Any) -> Value:
    return [values[each] for each in index] if isinstance(index, list) else values[index]


def _concat(*lists: list[Any], **_: Any) -> Value:
    return [each for values in lists for each in values]


def _unsqueeze(x: Value, axes: Value = None, **_: Any) -> Value:
    return None if isinstance(x, list) or len(axes) != 1 else [x]


def _squeeze(x: Value, *_: Any, **__: Any) -> Value:
    return x[0] if isinstance(x, list) and len(x) == 1 else None


def _reshape(x: Value, shape: Value, **_: Any) -> Value:
    if shape == []:
        return x[0] if isinstance(x, list) else x
    return None if len(shape) > 1 else x if isinstance(x, list) else [x]


def _cast(x: Value, to: int, **_: Any) -> Value:
    return x if to in _CASTS and not isinstance(x[0] if isinstance(x, list) and x else x, bool) else None


def _slice(
    x: list[Any], starts: Value = None, ends: Value = None, _axes: Any = None, steps: Value = None, **_: Any
) -> Value:
    return x[starts[0] : ends[0]] if steps in (None, [1]) and starts else None


def _constant_of_shape(shape: list[Any], value: Value = None, **_: Any) -> Value:
    if not isinstance(value, list):
        return None
    return value * shape[0] if len(shape) == 1 else torch.full(shape, value[0])


def _each(function: Callable[..., Any]) -> Callable[..., Value]:
    """A function of integers, for lists that broadcast too."""

    def apply(*inputs: Value, **_: Any) -> Value:
        lists = [each if isinstance(each, list) else [each] for each in inputs]
        length = max(map(len, lists)) if all(lists) else 0
        found = [
            function(*of_place)
            for of_place in zip(*(each * length if len(each) == 1 else each for each in lists), strict=True)
        ]
        return found if any(isinstance(each, list) for each in inputs) else found[0]

    return apply


def _quotient(x: Any, y: Any) -> Any:
    """Division towards zero."""
    if x >= 0 and y > 0:
        return x // y
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


_OF_INTEGERS: dict[str, Callable[..., Value]] = {
    "Add": _each(operator.add),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _each(_quotient),
    "Equal": _each(operator.eq),
    "Gather": _gather,
    "Identity": lambda x, **_: x,
    "Max": _each(max),
    "Min": _each(min),
    "Mul": _each(operator.mul),
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": lambda x, **_: math.prod(_shape(x)),
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _each(operator.sub),
    "Unsqueeze": _unsqueeze,
    "Where": _each(lambda condition, x, y: x if condition else y),
}
"""Functions of integers and lists of them by operator; they return None for what needs tensors."""
