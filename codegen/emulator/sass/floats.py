"""Words that compute with float32, float16 and bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from codegen.emulator.alu.arithmetic import Lanes, Mask, comparison, float_operation
from codegen.emulator.alu.conversions import conversion
from codegen.emulator.faults import UnsupportedError
from codegen.emulator.sass.integers import Run, compare
from codegen.emulator.sass.state import Instruction, State
from codegen.sass.isa.encoding import ZERO_REGISTER

_FLOAT_COMPARISONS: Final = {
    1: "lt",
    2: "eq",
    3: "le",
    4: "gt",
    5: "ne",
    6: "ge",
    7: "num",
    8: "nan",
    9: "ltu",
    10: "equ",
    11: "leu",
    12: "gtu",
    13: "neu",
    14: "geu",
}
_HALF_PARTS: Final = {0: (0, 1), 2: (0, 0), 3: (1, 1)}
"""The halves of a register that a packed operand takes, by its two bits."""
_FLOAT_PARTS: Final = 1
"""Those bits of an operand that is a float32."""


def _float(value: Lanes | Any, sign: tuple[bool, bool]) -> Lanes | Any:
    negated, absolute = sign
    number = value.view(np.float32)
    number = np.abs(number) if absolute else number
    return -number if negated else number


def _computed(kind: str, name: str) -> Callable[..., Lanes]:
    operation = float_operation(name, kind)
    if operation is None:
        raise UnsupportedError(name)
    return operation.compute


def _select_float(state: State, word: Instruction, mask: Mask) -> None:
    a, b = _float(word.a(state), word.a_sign()), _float(word.b(state), word.b_sign())
    state.put(word, np.where(word.input_predicate(state), a, b), mask)


def _least_or_greatest(state: State, word: Instruction, mask: Mask) -> None:
    suffix = ".NaN" if word.field(81) else ""
    a, b = _float(word.a(state), word.a_sign()), _float(word.b(state), word.b_sign())
    least = word.input_predicate(state)
    value = np.where(least, _computed("f32", f"min{suffix}")(a, b), _computed("f32", f"max{suffix}")(a, b))
    state.put(word, value.astype(np.float32), mask)


def _least_or_greatest_of_three(state: State, word: Instruction, mask: Mask) -> None:
    suffix = ".NaN" if word.field(81) else ""
    a, b = _float(word.a(state), word.a_sign()), _float(word.b(state), word.b_sign())
    c, least = _float(word.c(state), word.c_sign()), word.input_predicate(state)
    low, high = _computed("f32", f"min{suffix}"), _computed("f32", f"max{suffix}")
    state.put(word, np.where(least, low(low(a, b), c), high(high(a, b), c)).astype(np.float32), mask)


def _compare_floats(state: State, word: Instruction, mask: Mask) -> None:
    name = _FLOAT_COMPARISONS.get(word.field(76, 4))
    known = None if name is None else comparison(name, None, "f32")
    if known is None:
        raise UnsupportedError("this comparison")
    a, b = _float(word.a(state), word.a_sign()), _float(word.b(state), word.b_sign())
    compare(state, word, mask, known.compute(a, b))


def _saturated(value: Lanes, word: Instruction) -> Lanes:
    """Clamps to 0 and 1 if the word saturates; NaN becomes +0."""
    if not word.field(77):
        return value
    return np.where(value > 0, np.minimum(value, np.float32(1)), np.float32(0)).astype(np.float32)


def _multiply_floats(state: State, word: Instruction, mask: Mask) -> None:
    a, b = _float(word.a(state), word.a_sign()), _float(word.b(state), word.b_sign())
    state.put(word, _saturated(np.multiply(a, b), word), mask)


def _add_floats(state: State, word: Instruction, mask: Mask) -> None:
    a, b = _float(word.a(state), word.a_sign()), _float(word.b(state), word.b_sign())
    state.put(word, _saturated(np.add(a, b), word), mask)


def _multiply_add_floats(state: State, word: Instruction, mask: Mask) -> None:
    a, b = _float(word.a(state), word.a_sign()), _float(word.b(state), word.b_sign())
    c = _float(word.c(state), word.c_sign())
    state.put(word, _saturated(state.fused(a, np.asarray(b), c).astype(np.float32), word), mask)


def _halves(value: Lanes | Any, parts: int, negated: bool, absolute: bool) -> Lanes:
    """A packed operand as float16 [lanes or 1, 2], the lower half first."""
    if parts not in _HALF_PARTS:
        raise UnsupportedError("a float32 operand of a packed instruction")
    pairs = np.atleast_1d(np.asarray(value)).view(np.float16).reshape(-1, 2)[:, _HALF_PARTS[parts]]
    pairs = np.abs(pairs) if absolute else pairs
    return -pairs if negated else pairs


def _low_halves(state: State, word: Instruction) -> Lanes:
    """Second operand of a packed float16 instruction, as halves."""
    parts = 0 if word.form.low == "immediate" else word.field(60, 2)
    return _halves(word.b(state), parts, *word.b_sign())


def _put_halves(state: State, word: Instruction, value: Lanes, mask: Mask) -> None:
    whole = np.ascontiguousarray(np.broadcast_to(value.astype(np.float16), (state.lanes, 2)))
    state.write(word.to, whole.view(np.uint32).reshape(-1), mask)


def _add_halves(state: State, word: Instruction, mask: Mask) -> None:
    if word.field(78):
        _half_to_float(state, word, mask)
        return
    if word.form.low != "immediate" and word.field(60, 2) == _FLOAT_PARTS:
        _float_to_halves(state, word, mask)
        return
    a = _halves(word.a(state), word.field(74, 2), *word.a_sign())
    _put_halves(state, word, np.add(a, _low_halves(state, word)), mask)


def _half_to_float(state: State, word: Instruction, mask: Mask) -> None:
    """HADD2.F32 -RZ, x or HADD2.F32 x, -RZ: converts a half to float32."""
    zero, negated = (word.field(24, 8), word.field(32, 8)), (word.a_sign()[0], word.b_sign()[0])
    if zero[0] == ZERO_REGISTER and negated[0]:
        half = _low_halves(state, word)
    elif zero[1] == ZERO_REGISTER and negated[1] and word.form.low == "register":
        half = _halves(word.a(state), word.field(74, 2), *word.a_sign())
    else:
        raise UnsupportedError("HADD2.F32 other than a conversion")
    state.put(word, half[:, 0].astype(np.float32), mask)


def _float_to_halves(state: State, word: Instruction, mask: Mask) -> None:
    """HADD2 x, -RZ, y.F32: rounds a float32 to both halves."""
    if word.field(24, 8) != ZERO_REGISTER or not word.a_sign()[0]:
        raise UnsupportedError("HADD2 of a float32 other than a conversion")
    half = _float(word.b(state), word.b_sign()).astype(np.float16)
    _put_halves(state, word, np.reshape(half, (-1, 1)), mask)


def _to_half(state: State, word: Instruction, mask: Mask) -> None:
    """F2F.F16.F32: converts a float32 to a half in the lower bits."""
    half = _float(word.b(state), word.b_sign()).astype(np.float16)
    state.put(word, np.broadcast_to(half, state.lanes).view(np.uint16).astype(np.uint32), mask)


def _multiply_add_halves(state: State, word: Instruction, mask: Mask) -> None:
    immediate = word.form.low == "immediate"
    a = _halves(word.a(state), word.field(74, 2), *word.a_sign())
    high = (word.field(81, 2), bool(word.field(84)), bool(word.field(83)))
    low = (0, False, False) if immediate else (word.field(60, 2), bool(word.field(63)), bool(word.field(62)))
    of_b, of_c = (high, low) if word.form.swapped else (low, high)
    b, c = _halves(word.b(state), *of_b), _halves(word.c(state), *of_c)
    _put_halves(state, word, _computed("f16x2", "fma.rn")(a, b, c), mask)


def _multiply_halves(state: State, word: Instruction, mask: Mask) -> None:
    a = _halves(word.a(state), word.field(74, 2), *word.a_sign())
    _put_halves(state, word, np.multiply(a, _low_halves(state, word)), mask)


def _to_halves(state: State, word: Instruction, mask: Mask) -> None:
    kind = "bf16" if word.field(76) else "f16"
    known = conversion(["rn", *(["relu"] if word.field(75) else [])], kind, "f32")
    if known is None:
        raise UnsupportedError("this conversion")
    upper, lower = (
        known.compute(np.broadcast_to(each, state.lanes)).view(np.uint16).astype(np.uint32)
        for each in (
            _float(word.a(state), word.a_sign()),
            _float(word.b(state), word.b_sign()),
        )
    )
    state.put(word, upper << np.uint32(16) | lower, mask)


def _function(state: State, word: Instruction, mask: Mask) -> None:
    name = {2: "ex2", 4: "rcp"}.get(word.field(74, 4))
    if name is None:
        raise UnsupportedError("this function of MUFU")
    value = _computed("f32", f"{name}.approx.ftz")(_float(word.b(state), word.b_sign()))
    state.put(word, value.astype(np.float32), mask)


FLOATS: Final[dict[str, Run]] = {
    "FSEL": _select_float,
    "FMNMX": _least_or_greatest,
    "FMNMX3": _least_or_greatest_of_three,
    "FSETP": _compare_floats,
    "FMUL": _multiply_floats,
    "FADD": _add_floats,
    "FFMA": _multiply_add_floats,
    "HADD2": _add_halves,
    "HMUL2": _multiply_halves,
    "HFMA2": _multiply_add_halves,
    "HFMA2.MMA": _multiply_add_halves,
    "F2F": _to_half,
    "F2FP": _to_halves,
    "MUFU": _function,
}
"""By the name of the opcode."""
