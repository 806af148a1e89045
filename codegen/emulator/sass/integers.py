"""Words that compute with integers, bits and predicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Lanes, Mask, comparison
from codegen.emulator.alu.bits import bit_operation
from codegen.emulator.faults import UnsupportedError
from codegen.emulator.ptx.steps import WARP_LANES
from codegen.emulator.sass.state import UNIFORM_ZERO, Instruction, State
from codegen.sass.isa.encoding import ALWAYS, ZERO_REGISTER
from codegen.sass.isa.opcodes import IMMEDIATE_64, WHOLE_64, Form

Run = Callable[[State, Instruction, Mask], None]
"""Runs one word for the lanes of a mask."""

_COMPARISONS: Final = {1: "lt", 2: "eq", 3: "le", 4: "gt", 5: "ne", 6: "ge"}
_COMBINATIONS: Final = {0: np.logical_and, 1: np.logical_or, 2: np.logical_xor}
_SPECIAL: Final = {
    0x21: "%tid.x",
    0x22: "%tid.y",
    0x23: "%tid.z",
    0x25: "%ctaid.x",
    0x26: "%ctaid.y",
    0x27: "%ctaid.z",
    0x00: "%laneid",
    0x88: "%cluster_ctarank",
}
_WINDOW: Final = 0x2F
WINDOW_HIGH: Final = 0x7F0B
"""The upper half of a generic address of shared memory; no global address has it."""
_ZERO_SPECIAL: Final = 0xFF
_MASK = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_FALSE: Final = ALWAYS | 1 << 3
"""!PT, as a predicate that a word reads."""


def _move(state: State, word: Instruction, mask: Mask) -> None:
    if word.field(WHOLE_64.first):
        _put_pair(state, word, _second_pair(state, word), mask)
    else:
        state.put(word, word.b(state), mask)


def _move_immediate_pair(state: State, word: Instruction, mask: Mask) -> None:
    value = np.full(state.lanes, word.field(*IMMEDIATE_64), dtype=np.uint64)
    _put_pair(state, word, value, mask)


def _predicates_to_register(state: State, word: Instruction, mask: Mask) -> None:
    chosen = word.field(32, 32)
    packed = word.a(state) & np.uint32(~chosen & 0xFFFFFFFF)
    for number in range(ALWAYS):
        if chosen >> number & 1:
            packed = packed | state.predicate(number).astype(np.uint32) << np.uint32(number)
    state.put(word, packed, mask)


def _special(state: State, word: Instruction, mask: Mask) -> None:
    number = word.field(72, 8)
    if number == _WINDOW:
        value = np.full(state.lanes, WINDOW_HIGH, dtype=np.uint32)
    elif number in _SPECIAL:
        value = state.special[_SPECIAL[number]][state.first : state.first + state.lanes]
    else:
        raise UnsupportedError(f"special register {number:#x}")
    state.put(word, value, mask)


def _zero_special(state: State, word: Instruction, mask: Mask) -> None:
    if word.field(72, 8) != _ZERO_SPECIAL:
        raise UnsupportedError(f"special register {word.field(72, 8):#x} in CS2R")
    for i in range(word.field(80) + 1):
        state.write(word.to + i, np.zeros(state.lanes, dtype=np.uint32), mask)


def _pair(state: State, first: int, *, uniform: bool) -> NDArray[np.uint64]:
    """The 64 bits of two registers; zeros for RZ and URZ."""
    zero = UNIFORM_ZERO if uniform else ZERO_REGISTER
    lower, upper = (state.read(each if first != zero else zero, uniform=uniform) for each in (first, first + 1))
    return upper.astype(np.uint64) << _32 | lower.astype(np.uint64)


def _first_pair(state: State, word: Instruction) -> NDArray[np.uint64]:
    return _pair(state, word.field(24, 6 if word.uniform else 8), uniform=word.uniform)


def _second_pair(state: State, word: Instruction) -> NDArray[np.uint64]:
    """The second operand of 64 bits; an immediate is a signed number of 32 bits, of SEL.64 33."""
    if word.form.low == "immediate":
        bits = 33 if word.kind.name == "SEL.64" else 32
        return np.full(state.lanes, word.signed(32, bits), dtype=np.int64).view(np.uint64)
    if word.form.low == "constant":
        raise UnsupportedError("a constant of 64 bits")
    uniform = word.uniform or word.form.low == "uniform"
    return _pair(state, word.field(32, 6 if uniform else 8), uniform=uniform)


def _put_pair(state: State, word: Instruction, value: NDArray[np.uint64], mask: Mask) -> None:
    state.write(word.to, (value & _MASK).astype(np.uint32), mask, uniform=word.uniform)
    if word.to != (UNIFORM_ZERO if word.uniform else ZERO_REGISTER):
        state.write(word.to + 1, (value >> _32).astype(np.uint32), mask, uniform=word.uniform)


def _select_pair(state: State, word: Instruction, mask: Mask) -> None:
    chosen = np.where(word.input_predicate(state), _first_pair(state, word), _second_pair(state, word))
    _put_pair(state, word, chosen, mask)


def _add_pairs(state: State, word: Instruction, mask: Mask) -> None:
    """IADD.64, UIADD3.64: without carries and signs."""
    carries = {word.field(first, 4) for first in ((87, 77) if word.uniform else (87,))}
    if carries != {_FALSE}:
        raise UnsupportedError("an addition of 64 bits with a carry")
    total = _first_pair(state, word) + _second_pair(state, word)
    if word.uniform:
        total = total + _pair(state, word.field(64, 6), uniform=True)
    _put_pair(state, word, total, mask)


def _select(state: State, word: Instruction, mask: Mask) -> None:
    state.put(word, np.where(word.input_predicate(state), word.a(state), word.b(state)), mask)


def compare(state: State, word: Instruction, mask: Mask, holds: Lanes) -> None:
    """Writes two predicates: whether the comparison holds, and its opposite, each combined with the input predicate."""
    given, combined = word.input_predicate(state), _COMBINATIONS.get(word.field(74, 2))
    if combined is None:
        raise UnsupportedError("a comparison combined otherwise than by AND, OR and XOR")
    state.set_predicate(word.field(84, 3), combined(~holds, given), mask, uniform=word.uniform)
    state.set_predicate(word.field(81, 3), combined(holds, given), mask, uniform=word.uniform)


def _compare_integers(state: State, word: Instruction, mask: Mask) -> None:
    kind = "s32" if word.field(73) else "u32"
    name = _COMPARISONS.get(word.field(76, 3))
    known = None if name is None else comparison(name, None, kind)
    if known is None:
        raise UnsupportedError("this comparison")
    dtype = np.int32 if word.field(73) else np.uint32
    a, b = word.a(state).view(dtype), word.b(state).view(dtype)
    compare(state, word, mask, known.compute(a, b))


def _with_sign(value: Lanes | Any, *, negated: bool) -> Lanes | Any:
    """An operand of 33 bits whose sum carries like the adder: negation is the complement plus one."""
    wide = np.asarray(value).astype(np.uint64)
    return (~wide & _MASK) + np.uint64(1) if negated else wide


def _add(state: State, word: Instruction, mask: Mask) -> None:
    """IADD3, UIADD3; the sum of three numbers may carry twice, into two predicates that an addition reads together."""
    signs = bool(word.field(72)), word.b_sign()[0], word.c_sign()[0]
    extended = bool(word.field(74))
    if extended and any(signs):
        raise UnsupportedError("a negated operand in an addition with carry")
    operands = (word.a(state), word.b(state), word.c(state))
    total = sum(_with_sign(each, negated=sign) for each, sign in zip(operands, signs, strict=True))
    if extended:
        total = (
            total + word.input_predicate(state).astype(np.uint64) + word.input_predicate(state, 77).astype(np.uint64)
        )
    carry = np.asarray(total) >> _32
    once, twice = word.field(81, 3), word.field(84, 3)
    if once != ALWAYS and twice == ALWAYS and (carry > 1).any():
        raise UnsupportedError("an addition of three numbers with a carry above one")
    if once == ALWAYS != twice:
        raise UnsupportedError("an addition with its second carry only")
    state.put(word, (np.asarray(total) & _MASK).astype(np.uint32), mask)
    state.set_predicate(once, carry > 0, mask, uniform=word.uniform)
    state.set_predicate(twice, carry > 1, mask, uniform=word.uniform)


def _shifted_add(state: State, word: Instruction, mask: Mask) -> None:
    shift, high, extended = word.field(75, 5), bool(word.field(80)), bool(word.field(74))
    a, b = word.a(state).astype(np.uint64), _with_sign(word.b(state), negated=word.b_sign()[0])
    if high:
        upper = word.c(state).astype(np.uint64)
        if word.field(73):
            upper = word.a(state).view(np.int32).astype(np.int64).view(np.uint64) >> _32
        a = (upper << _32 | a) << np.uint64(shift) >> _32
    else:
        a = a << np.uint64(shift) & _MASK
    total = a + b
    if extended:
        total = total + word.input_predicate(state).astype(np.uint64)
    state.put(word, (total & _MASK).astype(np.uint32), mask)
    state.set_predicate(word.field(81, 3), total >> _32 != 0, mask, uniform=word.uniform)


def _logic(state: State, word: Instruction, mask: Mask) -> None:
    known = bit_operation("lop3", "b32")
    if known is None:
        raise UnsupportedError("lop3")
    value = known.compute(word.a(state), word.b(state), word.c(state), np.uint32(word.field(72, 8)))
    given, holds = word.input_predicate(state), value != 0
    state.set_predicate(
        word.field(81, 3), holds & given if word.field(80) else holds | given, mask, uniform=word.uniform
    )
    state.put(word, value, mask)


def _predicate_logic(state: State, word: Instruction, mask: Mask) -> None:
    """PLOP3: two functions of three predicates, each as a table of eight bits."""
    third = state.predicate(word.field(68, 3), negated=bool(word.field(71)), uniform=bool(word.field(67)))
    row = 4 * word.input_predicate(state) + 2 * word.input_predicate(state, 77) + third
    for to, table in ((81, word.field(64, 3) | word.field(72, 5) << 3), (84, word.field(16, 8))):
        state.set_predicate(word.field(to, 3), (np.int64(table) >> row & 1).astype(np.bool_), mask)


def _permute(state: State, word: Instruction, mask: Mask) -> None:
    known = bit_operation("prmt", "b32")
    if known is None:
        raise UnsupportedError("prmt")
    state.put(word, known.compute(word.a(state), word.c(state), word.b(state)), mask)


def _shift(state: State, word: Instruction, mask: Mask) -> None:
    kind, right, high = word.field(73, 2), bool(word.field(76)), bool(word.field(80))
    low, upper = word.a(state).astype(np.uint64), np.asarray(word.c(state)).astype(np.uint64)
    amount = np.minimum(np.asarray(word.b(state)), 32 if kind >= 2 else 63).astype(np.uint64)
    match kind, right, high:
        case ((2 | 3), False, False):
            value = low << amount
        case 3, True, True:
            value = upper >> amount
        case 2, True, True:
            value = (upper.astype(np.uint32).view(np.int32).astype(np.int64) >> amount.astype(np.int64)).view(np.uint64)
        case ((0 | 1), False, True):
            value = (upper << _32 | low) << amount >> _32
        case 3, True, False if word.uniform or word.field(64, 8) == 255:
            value = low >> amount
        case _:
            raise UnsupportedError("this kind of shift")
    state.put(word, (value & _MASK).astype(np.uint32), mask)


def _multiply_add_integers(state: State, word: Instruction, mask: Mask) -> None:
    if word.field(72) or word.b_sign()[0]:
        raise UnsupportedError("a negated factor in IMAD")
    a, b = word.a(state).astype(np.uint64), np.asarray(word.b(state)).astype(np.uint64)
    value = a * b + _with_sign(word.c(state), negated=word.c_sign()[0])
    if word.field(74):
        value = value + word.input_predicate(state).astype(np.uint64)
    state.put(word, (np.asarray(value) & _MASK).astype(np.uint32), mask)


def _multiply_add_wide(state: State, word: Instruction, mask: Mask) -> None:
    value = _wide_product(state, word)
    state.write(word.to, (value & _MASK).astype(np.uint32), mask, uniform=word.uniform)
    state.write(word.to + 1, (value >> _32).astype(np.uint32), mask, uniform=word.uniform)


def _multiply_add_high(state: State, word: Instruction, mask: Mask) -> None:
    """IMAD.HI: the upper half of what IMAD.WIDE computes."""
    state.write(word.to, (_wide_product(state, word) >> _32).astype(np.uint32), mask)


def _wide_product(state: State, word: Instruction) -> NDArray[np.uint64]:
    signed = np.int64 if word.field(73) else np.uint64
    narrow = np.int32 if word.field(73) else np.uint32
    a, b = word.a(state).view(narrow).astype(signed), np.asarray(word.b(state)).view(narrow).astype(signed)
    value: NDArray[np.uint64] = (a * b).view(np.uint64) + _wide_addend(state, word)
    return value


def _wide_addend(state: State, word: Instruction) -> NDArray[np.uint64]:
    """The addend of IMAD.WIDE, 64 bits in two registers or in constant memory."""
    if word.form == Form.IMMEDIATE_C or word.c_sign()[0]:
        raise UnsupportedError("this addend of IMAD.WIDE")
    if word.form == Form.CONSTANT_C:
        return np.frombuffer(state.constant(word.field(54, 5), word.field(38, 16), 8), dtype=np.uint64)
    uniform_c = word.form == Form.UNIFORM_C
    uniform = word.uniform or uniform_c
    return _pair(state, word.field(32 if uniform_c else 64, 6 if uniform else 8), uniform=uniform)


def _add_two(state: State, word: Instruction, mask: Mask) -> None:
    a, b = (_with_sign(word.a(state), negated=bool(word.field(72))), word.b(state))
    total = a + _with_sign(b, negated=word.b_sign()[0])
    state.put(word, (total & _MASK).astype(np.uint32), mask)


def _add_and_bound(state: State, word: Instruction, mask: Mask) -> None:
    """VIADDMNMX: the minimum of a + b and c, or the maximum if the predicate is false."""
    if word.c_sign()[0]:
        raise UnsupportedError("a negated bound in VIADDMNMX")
    dtype = np.int32 if word.field(72) else np.uint32
    total = word.a(state) + _with_sign(word.b(state), negated=word.b_sign()[0])
    total = (total & _MASK).astype(np.uint32).view(dtype)
    bound = word.c(state).view(dtype)
    value = np.where(word.input_predicate(state), np.minimum(total, bound), np.maximum(total, bound))
    state.put(word, value, mask)


def _least_or_greatest(state: State, word: Instruction, mask: Mask) -> None:
    """VIMNMX, UVIMNMX, IMNMX: the minimum of a and b, or the maximum if the predicate is false."""
    dtype = np.int32 if word.field(73 if word.kind.name == "IMNMX" else 72) else np.uint32
    a, b = word.a(state).view(dtype), np.asarray(word.b(state)).view(dtype)
    state.put(word, np.where(word.input_predicate(state), np.minimum(a, b), np.maximum(a, b)), mask)


def _to_uniform(state: State, word: Instruction, mask: Mask) -> None:
    """R2UR: the result is defined only if the register is equal in all lanes of the warp that run the word.

    The uniform register is the whole warp's, also where only some of its lanes run the word.
    """
    threads = state.memories.shared.threads
    value, runs = word.a(state).reshape(-1, threads).copy(), np.zeros((state.lanes // threads, threads), dtype=np.bool_)
    runs[:] = np.broadcast_to(True if mask is None else mask, state.lanes).reshape(-1, threads)
    for first in range(0, threads, WARP_LANES):
        warps, run = value[:, first : first + WARP_LANES], runs[:, first : first + WARP_LANES]
        least = np.where(run, warps, np.uint32(_MASK)).min(axis=1, keepdims=True)
        if (np.where(run, warps, np.uint32(0)).max(axis=1, keepdims=True) > least).any():
            raise UnsupportedError("R2UR of a register that differs within a warp")
        warps[:], run[:] = least, run.any(axis=1, keepdims=True)
    state.write(word.field(16, 6), value.reshape(-1), runs.reshape(-1), uniform=True)


INTEGERS: Final[dict[str, Run]] = {
    "MOV": _move,
    "P2R": _predicates_to_register,
    "CS2R": _zero_special,
    "SEL": _select,
    "ISETP": _compare_integers,
    "IADD3": _add,
    "LEA": _shifted_add,
    "LOP3": _logic,
    "PRMT": _permute,
    "SHF": _shift,
    "PLOP3": _predicate_logic,
    "IMAD": _multiply_add_integers,
    "IMAD.WIDE": _multiply_add_wide,
    "IMAD.HI": _multiply_add_high,
    "VIADD": _add_two,
    "VIADDMNMX": _add_and_bound,
    "VIMNMX": _least_or_greatest,
    "UVIMNMX": _least_or_greatest,
    "IMNMX": _least_or_greatest,
    "R2UR": _to_uniform,
    "MOV.64": _move_immediate_pair,
    "UMOV.64": _move_immediate_pair,
    "SEL.64": _select_pair,
    "IADD.64": _add_pairs,
    "UIADD3.64": _add_pairs,
    "UMOV": _move,
    "UISETP": _compare_integers,
    "UIADD3": _add,
    "ULEA": _shifted_add,
    "ULOP3": _logic,
    "USHF": _shift,
    "UIMAD": _multiply_add_integers,
    "UIMAD.WIDE": _multiply_add_wide,
    "S2R": _special,
    "S2UR": _special,
}
"""By the name of the opcode."""
