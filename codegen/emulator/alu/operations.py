"""The operation behind each PTX opcode without side effects."""

from __future__ import annotations

from functools import cache

import numpy as np

from codegen.emulator.alu.arithmetic import (
    DTYPES,
    FLOATS,
    INTEGERS,
    PLAIN,
    Lanes,
    Operation,
    comparison,
    comparison_as_number,
    float_operation,
    integer_operation,
)
from codegen.emulator.alu.bits import bit_operation
from codegen.emulator.alu.conversions import conversion


@cache
def operation(opcode: str) -> Operation | None:
    """The operation of an opcode with its suffixes. None: unsupported, or not a pure operation."""
    match opcode.split("."):
        case ["setp", name, kind]:
            return comparison(name, None, kind)
        case ["setp", name, ("and" | "or" | "xor") as combination, kind]:
            return comparison(name, combination, kind)
        case ["set", name, result, kind]:
            return comparison_as_number(name, result, kind)
        case ["selp", kind] if kind in PLAIN:
            return Operation(kind, (kind, kind, "pred"), _select)
        case ["cvt", *modifiers, result, source] if result in DTYPES and source in DTYPES:
            return conversion(modifiers, result, source)
        case [name, kind] if known := bit_operation(name, kind):
            return known
        case [*name, kind] if kind in FLOATS:
            return float_operation(".".join(name), kind)
        case [*name, kind] if kind in INTEGERS:
            return integer_operation(".".join(name), kind)
    return None


def _select(a: Lanes, b: Lanes, condition: Lanes) -> Lanes:
    return np.where(condition, a, b)
