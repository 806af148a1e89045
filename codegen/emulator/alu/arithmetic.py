"""Arithmetic and comparisons of integers and floats, as functions of NumPy arrays; and how PTX types are held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    "f16x2": np.dtype(("f2", (2,))),
    "bf16": np.dtype("u2"),
    "bf16x2": np.dtype(("u2", (2,))),
}
"""How a PTX type is held: pairs as [lanes, 2], the lower half first; bfloat16, which NumPy lacks, as its bits."""

INTEGERS: Final = ("u16", "s16", "u32", "s32", "u64", "s64")
FLOATS: Final = ("f16", "f16x2", "f32", "f64")
BITS: Final = ("b16", "b32", "b64")
PLAIN: Final = (*BITS, *INTEGERS, "f32", "f64")
"""What is moved, selected, loaded and stored: float16 is as .b16."""

_APPROXIMATED: Final[dict[str, np.ufunc]] = {"ex2.approx.ftz": np.exp2, "rcp.approx.ftz": np.reciprocal}
"""Whose results the hardware has to a few units in the last place: here they are rounded to nearest."""
_EXACT = ("max", "min", "max.NaN", "min.NaN", "neg", "abs", "copysign")
_ROUNDED = ("div", "rcp", "sqrt")
"""Only with a rounding; without one they are no instructions."""
_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


@dataclass(frozen=True)
class Operation:
    """A pure instruction: the type it writes, the types it reads, and what it computes."""

    result: str
    sources: tuple[str, ...]
    compute: Callable[..., Lanes]
    combines: bool = False
    """Whether the last source is a predicate that a comparison is combined with, which may be negated."""


def integer_operation(name: str, kind: str) -> Operation | None:
    """`name` is the opcode without its type, `kind` the type. None for what is not here."""
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
    """`name` is the opcode without its type, `kind` the type. None for what is not here."""
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
    """PTX names the sign first."""
    return np.copysign(value, sign)


def _without_subnormals(a: Lanes) -> Lanes:
    """In float32, with zeros of their sign for subnormal numbers."""
    rounded = a.astype(np.float32)
    subnormal = np.abs(rounded) < np.finfo(np.float32).smallest_normal
    return np.where(subnormal, np.copysign(np.float32(0), rounded), rounded)


def _half_fused(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """A float64 that rounds to the float16 of a * b + c with one rounding.

    The product has 22 bits and is exact. The sum is not exact if its first and last bit are 53 or more apart, and then
    rounding it twice does no harm: either it is beyond 2^29, infinite in float16; or the product lies 31 bits below c,
    which is a float16, and moves it by far less than the way to the next tie.
    """
    result: Lanes = np.multiply(a, b, dtype=np.float64) + c
    return result


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


def _float_maximum_or_nan(a: Lanes, b: Lanes) -> Lanes:
    """NaN if either is."""
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))


def _float_minimum_or_nan(a: Lanes, b: Lanes) -> Lanes:
    return -_float_maximum_or_nan(-a, -b)


def comparison(name: str, combination: str | None, kind: str) -> Operation | None:
    """`setp`: a predicate, which may be combined with another one."""
    compute = _comparison_function(name, kind)
    if compute is None or kind == "f16x2":
        return None
    if combination is None:
        return Operation("pred", (kind, kind), compute)
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[combination]
    return Operation("pred", (kind, kind, "pred"), lambda a, b, c: combine(compute(a, b), c), combines=True)


def comparison_as_number(name: str, result: str, kind: str) -> Operation | None:
    """`set`: what is true becomes all ones in an integer and 1.0 in a float."""
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
