"""Logic, shifts, bit fields and byte permutation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from codegen.emulator.alu.arithmetic import BITS, DTYPES, INTEGERS, Lanes, Operation

_LOGIC: Final[dict[str, np.ufunc]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
}


def bit_operation(name: str, kind: str) -> Operation | None:
    """The operation of an opcode `name` on the type `kind`. None: unsupported."""
    if (logic := _LOGIC.get(name)) and kind in (*BITS, "pred"):
        return Operation(kind, (kind,) * logic.nin, logic)
    match name:
        case "shl" if kind in BITS:
            return Operation(kind, (kind, "u32"), _shift_left)
        case "shr" if kind in (*BITS, *INTEGERS):
            return Operation(kind, (kind, "u32"), _shift_right)
        case "bfe" if kind in INTEGERS and DTYPES[kind].itemsize > 2:
            return Operation(kind, (kind, "u32", "u32"), _extract_field)
        case "bfi" if kind in ("b32", "b64"):
            return Operation(kind, (kind, kind, "u32", "u32"), _insert_field)
        case "prmt" if kind == "b32":
            return Operation(kind, (kind, kind, kind), _permute_bytes)
        case "lop3" if kind == "b32":
            return Operation(kind, (kind,) * 4, _three_input_logic)
    return None


def _shifted(shift: Callable[..., Lanes], a: Lanes, amount: Lanes) -> Lanes:
    # NumPy shifts by the width or more as PTX does: to zero, or to copies of the sign.
    return shift(a, np.minimum(amount, 64).astype(a.dtype))


def _shift_left(a: Lanes, amount: Lanes) -> Lanes:
    return _shifted(np.left_shift, a, amount)


def _shift_right(a: Lanes, amount: Lanes) -> Lanes:
    return _shifted(np.right_shift, a, amount)


def _low_byte(a: Lanes) -> Lanes:
    """The low byte of a field's position or length; the other bytes are ignored."""
    return a & np.uint32(0xFF)


def _extract_field(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """bfe: bits beyond the last are zeros or copies of the sign; a signed field is extended by its highest bit."""
    bits = np.uint32(8 * a.dtype.itemsize)
    unused = bits - np.minimum(_low_byte(length), bits)
    return _shift_right(_shift_left(_shift_right(a, _low_byte(position)), unused), unused)


def _insert_field(field: Lanes, into: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """bfi: the lowest bits of `field` placed in `into`; bits beyond the last are lost."""
    ones = ~np.zeros_like(into)
    mask = _shift_left(~_shift_left(ones, _low_byte(length)), _low_byte(position))
    return (into & ~mask) | (_shift_left(field, _low_byte(position)) & mask)


def _permute_bytes(a: Lanes, b: Lanes, selector: Lanes) -> Lanes:
    """prmt: each nibble of the selector names a byte of a (0 to 3) or b (4 to 7), its top bit asks for the sign."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros((), dtype=np.uint32)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i)
        byte = (both >> ((nibble & np.uint32(7)) * np.uint32(8)).astype(np.uint64)).astype(np.uint8)
        sign = np.where(byte >= 0x80, np.uint8(0xFF), np.uint8(0))
        byte = np.where(nibble & np.uint32(8), sign, byte)
        result = result | byte.astype(np.uint32) << np.uint32(8 * i)
    return result


def _three_input_logic(a: Lanes, b: Lanes, c: Lanes, table: Lanes) -> Lanes:
    """lop3: bit 4 * a + 2 * b + c of the table, for each bit of a, b and c."""
    result = np.zeros((), dtype=np.uint32)
    for i in range(8):
        chosen = -(table >> np.uint32(i) & np.uint32(1))
        result = result | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c) & chosen
    return result
