"""Arithmetic and comparisons on NumPy arrays, and the NumPy types that hold PTX types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]
"""One value per lane."""
Mask = NDArray[np.bool_] | None
"""The lanes that run; None: all of them."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "pred": np.dtype(np.bool_),
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    "f16x2": np.dtype(("f2", (2,))),
    "bf16": np.dtype("u2"),
    "bf16x2": np.dtype(("u2", (2,))),
}
"""The NumPy type of each PTX type: pairs are [lanes, 2], the lower half first; bfloat16 is its bits."""

INTEGERS: Final = ("u16", "s16", "u32", "s32", "u64", "s64")
FLOATS: Final = ("f16", "f16x2", "f32", "f64")
BITS: Final = ("b16", "b32", "b64")
PLAIN: Final = (*BITS, *INTEGERS, "f32", "f64")
"""Types that are moved, selected, loaded and stored; float16 is moved as .b16."""

_APPROXIMATED: Final[dict[str, np.ufunc]] = {"ex2.approx.ftz": np.exp2, "rcp.approx.ftz": np.reciprocal}
"""Functions that the hardware computes to a few units in the last place, here rounded to nearest."""
_EXACT = ("max", "min", "max.NaN", "min.NaN", "neg", "abs", "copysign")
_ROUNDED = ("div", "rcp", "sqrt")
"""Instructions that PTX has only with a rounding mode."""
_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


@dataclass(frozen=True)
class Operation:
    """An instruction without side effects: the type it writes, the types it reads, and its function."""

    result: str
    sources: tuple[str, ...]
    compute: Callable[..., Lanes]
    combines: bool = False
    """Whether the last source is a predicate that combines with a comparison and may be negated."""


def integer_operation(name: str, kind: str) -> Operation | None:
    """The operation of an opcode `name` on the type `kind`. None: unsupported."""
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


def float_operation(name: str, kind: str) -> Operation | None:
    """The operation of an opcode `name` on the type `kind`. None: unsupported."""
    half = kind in ("f16", "f16x2")
    if kind == "f32" and (exact := _APPROXIMATED.get(name)):
        return Operation(kind, (kind,), lambda a: _without_subnormals(exact(_without_subnormals(a).astype(np.float64))))
    if half and name == "fma.rn":
        return Operation(kind, (kind,) * 3, _half_fused)
    functions: dict[str, Callable[..., Lanes]] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "max": _float_maximum,
        "min": _float_minimum,
        "max.NaN": _float_maximum_or_nan,
        "min.NaN": _float_minimum_or_nan,
        "neg": np.negative,
        "abs": np.absolute,
        **({} if half else {"div": np.divide, "rcp": np.reciprocal, "sqrt": np.sqrt, "copysign": _signed_as}),
    }
    base = name.removesuffix(".rn")
    if base not in functions or name in _ROUNDED or (name != base and base in _EXACT):
        return None
    return Operation(kind, (kind,) * (1 if base in ("neg", "abs", "rcp", "sqrt") else 2), functions[base])


def _signed_as(sign: Lanes, value: Lanes) -> Lanes:
    """copysign: PTX names the sign first."""
    return np.copysign(value, sign)


def _without_subnormals(a: Lanes) -> Lanes:
    """Rounds to float32; subnormal numbers become zeros of their sign."""
    rounded = a.astype(np.float32)
    subnormal = np.abs(rounded) < np.finfo(np.float32).smallest_normal
    return np.where(subnormal, np.copysign(np.float32(0), rounded), rounded)


def _half_fused(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """A float64 that rounds to the correctly rounded float16 of a * b + c.

    The product has 22 bits and is exact. The sum is inexact only if its first and last bit are 53 or more apart. Then
    rounding twice is still right: either the sum is beyond 2^29 and infinite in float16, or the product lies 31 bits
    below the float16 c and is far smaller than the distance to the next tie.
    """
    result: Lanes = np.multiply(a, b, dtype=np.float64) + c
    return result


def _quotient(a: Lanes, b: Lanes) -> Lanes:
    """Division rounded towards zero; division by zero gives all ones, as on a GPU."""
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
    """The larger one; the number if the other is NaN; +0 is above -0."""
    return np.where((a == 0) & (b == 0), a + b, np.fmax(a, b))


def _float_minimum(a: Lanes, b: Lanes) -> Lanes:
    return -_float_maximum(-a, -b)


def _float_maximum_or_nan(a: Lanes, b: Lanes) -> Lanes:
    """The larger one; NaN if either is NaN."""
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))


def _float_minimum_or_nan(a: Lanes, b: Lanes) -> Lanes:
    return -_float_maximum_or_nan(-a, -b)


def comparison(name: str, combination: str | None, kind: str) -> Operation | None:
    """`setp`: a predicate, optionally combined with another one. None: unsupported."""
    compute = _comparison_function(name, kind)
    if compute is None or kind == "f16x2":
        return None
    if combination is None:
        return Operation("pred", (kind, kind), compute)
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[combination]
    return Operation("pred", (kind, kind, "pred"), lambda a, b, c: combine(compute(a, b), c), combines=True)


def comparison_as_number(name: str, result: str, kind: str) -> Operation | None:
    """`set`: true becomes all ones in an integer and 1.0 in a float. None: unsupported."""
    compute = _comparison_function(name, kind)
    results = {"f16x2": ("f16x2",), "f16": ("u16", "s16", "u32", "s32", "f16")}.get(kind, ("u32", "s32", "f32"))
    if compute is None or result not in results:
        return None
    dtype = DTYPES[result].base
    true, false = np.ones((), dtype) if dtype.kind == "f" else ~np.zeros((), dtype), np.zeros((), dtype)
    return Operation(result, (kind, kind), lambda a, b: np.where(compute(a, b), true, false))


def _comparison_function(name: str, kind: str) -> Callable[..., Lanes] | None:
    ordered = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
    if kind in FLOATS:
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
    if name in ("eq", "ne") and kind in (*INTEGERS, *BITS):
        return np.equal if name == "eq" else np.not_equal
    if kind in ("u16", "u32", "u64"):
        name = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(name, name)
    return ordered.get(name) if kind in INTEGERS else None
