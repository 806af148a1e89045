"""What instructions compute: an opcode to a function of NumPy arrays, one element per lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]
"""One value per lane."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "pred": np.dtype(np.bool_),
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
}
"""How a PTX type is held."""

_INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
_BITS = ("b16", "b32", "b64")
_EXACT = ("max", "min", "neg", "abs")
_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


@dataclass(frozen=True)
class Operation:
    """A pure instruction: the type it writes, the types it reads, and what it computes."""

    result: str
    sources: tuple[str, ...]
    compute: Callable[..., Lanes]
    combines: bool = False
    """Whether the last source is a predicate that a comparison is combined with, which may be negated."""


@cache
def operation(opcode: str) -> Operation | None:
    """The operation behind an opcode; None for one that is not here."""
    match opcode.split("."):
        case ["setp", comparison, kind]:
            return _comparison(comparison, None, kind)
        case ["setp", comparison, ("and" | "or" | "xor") as combination, kind]:
            return _comparison(comparison, combination, kind)
        case ["selp", kind] if kind in DTYPES and kind not in ("pred", "b8", "u8", "s8", "f16"):
            return Operation(kind, (kind, kind, "pred"), _select)
        case ["cvt", *rounding, result, source]:
            return _conversion(rounding, result, source)
        case ["shl" | "shr", _]:
            return _shift(opcode)
        case [("and" | "or" | "xor" | "not") as name, kind] if kind in (*_BITS, "pred"):
            compute = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}[name]
            return Operation(kind, (kind,) * compute.nin, compute)
        case [*name, ("f32" | "f64") as kind]:
            return _floating(".".join(name), kind)
        case [*name, kind] if kind in _INTEGERS:
            return _integer(".".join(name), kind)
    return None


def _integer(name: str, kind: str) -> Operation | None:
    one_type: dict[str, Callable[..., Lanes]] = {
        "add": np.add,
        "sub": np.subtract,
        "mul.lo": np.multiply,
        "mul.hi": _high_product,
        "mad.lo": lambda a, b, c: a * b + c,
        "mad.hi": lambda a, b, c: _high_product(a, b) + c,
        "min": np.minimum,
        "max": np.maximum,
        "div": _quotient,
        "rem": np.fmod,
        **({"neg": np.negative, "abs": np.absolute} if kind[0] == "s" else {}),
    }
    if compute := one_type.get(name):
        count = 1 if name in ("neg", "abs") else 3 if name.startswith("mad") else 2
        return Operation(kind, (kind,) * count, compute)
    if wide := _WIDER.get(kind):
        dtype = DTYPES[wide]
        if name == "mul.wide":
            return Operation(wide, (kind, kind), lambda a, b: np.multiply(a, b, dtype=dtype))
        if name == "mad.wide":
            return Operation(wide, (kind, kind, wide), lambda a, b, c: np.multiply(a, b, dtype=dtype) + c)
    return None


def _floating(name: str, kind: str) -> Operation | None:
    functions: dict[str, Callable[..., Lanes]] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "max": _float_maximum,
        "min": _float_minimum,
        "neg": np.negative,
        "abs": np.absolute,
    }
    base = name.removesuffix(".rn")
    if base not in functions or name == "div" or (name != base and base in _EXACT):
        return None
    return Operation(kind, (kind,) * (1 if base in ("neg", "abs") else 2), functions[base])


def _shift(opcode: str) -> Operation | None:
    name, kind = opcode.split(".")
    if kind in _BITS or (name == "shr" and kind in _INTEGERS):
        # NumPy shifts by the width or more as PTX does: nothing, or copies of the sign, are left.
        return Operation(kind, (kind, "u32"), _shift_left if name == "shl" else _shift_right)
    return None


def _shift_left(a: Lanes, amount: Lanes) -> Lanes:
    shifted: Lanes = np.left_shift(a, np.minimum(amount, 64).astype(a.dtype))
    return shifted


def _shift_right(a: Lanes, amount: Lanes) -> Lanes:
    shifted: Lanes = np.right_shift(a, np.minimum(amount, 64).astype(a.dtype))
    return shifted


def _select(a: Lanes, b: Lanes, condition: Lanes) -> Lanes:
    return np.where(condition, a, b)


def _quotient(a: Lanes, b: Lanes) -> Lanes:
    """Rounded towards zero; NumPy's floor division would round down. By zero: all ones, as the hardware gives."""
    quotient = np.floor_divide(a - np.fmod(a, b), b)
    result: Lanes = np.where(b == 0, ~np.zeros_like(quotient), quotient)
    return result


def _high_product(a: Lanes, b: Lanes) -> Lanes:
    """The upper half of the product of two integers of one type."""
    dtype = a.dtype
    bits = 8 * dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        product: Lanes = np.multiply(a, b, dtype=wide) >> wide.type(bits)
        return product.astype(dtype)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    middle = (x >> half) * (y & low) + ((x & low) * (y & low) >> half)
    rest = (x & low) * (y >> half) + (middle & low)
    high: Lanes = (x >> half) * (y >> half) + (middle >> half) + (rest >> half)
    if dtype.kind == "i":
        zero = np.uint64(0)
        high = high - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    return high.astype(dtype)


def _float_maximum(a: Lanes, b: Lanes) -> Lanes:
    """The number if the other is NaN; +0 is above -0."""
    return np.where((a == 0) & (b == 0), a + b, np.fmax(a, b))


def _float_minimum(a: Lanes, b: Lanes) -> Lanes:
    return -_float_maximum(-a, -b)


def _comparison(name: str, combination: str | None, kind: str) -> Operation | None:
    compute = _comparison_function(name, kind)
    if compute is None:
        return None
    if combination is None:
        return Operation("pred", (kind, kind), compute)
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[combination]
    return Operation("pred", (kind, kind, "pred"), lambda a, b, c: combine(compute(a, b), c), combines=True)


def _comparison_function(name: str, kind: str) -> Callable[..., Lanes] | None:
    ordered = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
    if kind in ("f32", "f64"):
        opposite = {"ltu": np.greater_equal, "leu": np.greater, "gtu": np.less_equal, "geu": np.less}
        if (negated := opposite.get(name)) is not None:
            return lambda a, b: ~negated(a, b)
        others: dict[str, Callable[..., Lanes]] = {
            "eq": np.equal,
            "neu": np.not_equal,
            "ne": lambda a, b: (a < b) | (a > b),
            "equ": lambda a, b: ~((a < b) | (a > b)),
            "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
            "nan": lambda a, b: np.isnan(a) | np.isnan(b),
        }
        return ordered.get(name) or others.get(name)
    if name in ("eq", "ne") and kind in (*_INTEGERS, *_BITS):
        return np.equal if name == "eq" else np.not_equal
    if kind in ("u16", "u32", "u64"):
        name = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(name, name)
    return ordered.get(name) if kind in _INTEGERS else None


def _conversion(rounding: list[str], result: str, source: str) -> Operation | None:
    if result not in DTYPES or source not in DTYPES or "pred" in (result, source) or "b" in result + source:
        return None
    target, floats = DTYPES[result], ("f" in result, "f" in source)
    wholes = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
    match floats, rounding:
        case ((False, False), []):
            return Operation(result, (source,), lambda a: a.astype(target))
        case ((True, False), ["rn"]):
            return Operation(result, (source,), lambda a: a.astype(target))
        case ((True, True), []) if int(result[1:]) > int(source[1:]):
            return Operation(result, (source,), lambda a: a.astype(target))
        case ((True, True), ["rn"]) if int(result[1:]) < int(source[1:]):
            return Operation(result, (source,), lambda a: a.astype(target))
        case ((True, True), [mode]) if mode in wholes and result == source:
            return Operation(result, (source,), wholes[mode])
        case ((False, True), [mode]) if mode in wholes:
            whole = wholes[mode]
            nan = 0 if source != "f64" and target.itemsize < 8 else 1 << (8 * target.itemsize - 1)
            return Operation(result, (source,), lambda a: _to_integer(whole(a), target, nan))
    return None


def _to_integer(value: Lanes, dtype: np.dtype[Any], nan: int) -> Lanes:
    """Whole floats as integers, clamped to the range; `nan` is the bits that a NaN becomes."""
    limits = np.iinfo(dtype)
    above, below = value >= float(limits.max // 2 + 1) * 2, value < float(limits.min)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    inside = ~(above | below | np.isnan(value))
    clamped = np.where(
        above, dtype.type(limits.max), np.where(below, dtype.type(limits.min), unsigned.type(nan).view(dtype))
    )
    return np.where(inside, np.where(inside, value, 0).astype(dtype), clamped)
