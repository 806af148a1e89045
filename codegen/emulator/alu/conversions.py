"""Conversions between types: `cvt`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from codegen.emulator.alu.arithmetic import DTYPES, Lanes, Operation

_WHOLES: Final[dict[str, Callable[..., Lanes]]] = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}

_BFLOAT16_NAN = 0x7FFF


def conversion(modifiers: list[str], result: str, source: str) -> Operation | None:
    """`cvt` with rounding and clamping `modifiers`. None: unsupported."""
    match modifiers, result, source:
        case [], "f32", "bf16":
            return Operation("f32", ("bf16",), lambda a: (a.astype(np.uint32) << np.uint32(16)).view(np.float32))
        case ["rn" | "rz" as rounding, *clamps], "f16" | "f16x2" | "bf16" | "bf16x2", "f32":
            return _from_float32(rounding, clamps, result)
    kinds = result[0] + source[0]
    if "b" in kinds or "p" in kinds or "x2" in result + source:
        return None
    return _between_numbers(modifiers, result, source)


def _between_numbers(modifiers: list[str], result: str, source: str) -> Operation | None:
    target, floats = DTYPES[result], (result[0] == "f", source[0] == "f")
    match floats, modifiers:
        case ((False, False), []):
            return Operation(result, (source,), lambda a: a.astype(target))
        case ((True, False), ["rn"]):
            return Operation(result, (source,), lambda a: a.astype(target))
        case ((True, True), []) if int(result[1:]) > int(source[1:]):
            return Operation(result, (source,), lambda a: a.astype(target))
        case ((True, True), ["rn"]) if int(result[1:]) < int(source[1:]):
            return Operation(result, (source,), lambda a: a.astype(target))
        case ((True, True), ["sat"]) if result == source:
            return Operation(result, (source,), _saturated)
        case ((True, True), [mode]) if mode in _WHOLES and result == source:
            return Operation(result, (source,), _WHOLES[mode])
        case ((False, True), [mode]) if mode in _WHOLES:
            whole = _WHOLES[mode]
            nan = 0 if source != "f64" and target.itemsize < 8 else 1 << (8 * target.itemsize - 1)
            return Operation(result, (source,), lambda a: _to_integer(whole(a), target, nan))
    return None


def _to_integer(value: Lanes, dtype: np.dtype[Any], nan: int) -> Lanes:
    """Integers from whole floats, clamped to the range; a NaN becomes the bits `nan`."""
    limits = np.iinfo(dtype)
    above, below = value >= float(limits.max // 2 + 1) * 2, value < float(limits.min)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    inside = ~(above | below | np.isnan(value))
    clamped = np.where(
        above, dtype.type(limits.max), np.where(below, dtype.type(limits.min), unsigned.type(nan).view(dtype))
    )
    return np.where(inside, np.where(inside, value, 0).astype(dtype), clamped)


def _from_float32(rounding: str, clamps: list[str], result: str) -> Operation | None:
    """Conversion to float16 or bfloat16, of one value or a pair whose first operand is the upper half."""
    pair, brain = result.endswith("x2"), result.startswith("b")
    clamp = {"": _unchanged, "relu": _rectified, **({} if pair or brain else {"sat": _saturated})}.get(".".join(clamps))
    rounded = {"rn": _to_bfloat16, "rz": _cut_to_bfloat16} if brain else {"rn": _to_float16}
    if clamp is None or (convert := rounded.get(rounding)) is None:
        return None
    if pair:
        return Operation(
            result,
            ("f32", "f32"),
            lambda upper, lower: np.stack(np.broadcast_arrays(convert(clamp(lower)), convert(clamp(upper))), axis=-1),
        )
    return Operation(result, ("f32",), lambda a: convert(clamp(a)))


def _unchanged(a: Lanes) -> Lanes:
    return a


def _rectified(a: Lanes) -> Lanes:
    """Negative values become +0; NaN stays."""
    return np.where(a <= 0, np.zeros_like(a), a)


def _saturated(a: Lanes) -> Lanes:
    """Clamps to 0 and 1; NaN becomes +0."""
    return np.where(a > 0, np.minimum(a, np.ones_like(a)), np.zeros_like(a))


def _to_float16(a: Lanes) -> Lanes:
    return a.astype(np.float16)


def _to_bfloat16(a: Lanes) -> Lanes:
    """The bits of the nearest bfloat16, ties to even. A bfloat16 is the upper half of a float32."""
    bits = a.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return _upper_half(bits + (np.uint32(0x7FFF) + odd), a)


def _cut_to_bfloat16(a: Lanes) -> Lanes:
    return _upper_half(a.view(np.uint32), a)


def _upper_half(bits: Lanes, a: Lanes) -> Lanes:
    return np.where(np.isnan(a), np.uint16(_BFLOAT16_NAN), (bits >> np.uint32(16)).astype(np.uint16))
