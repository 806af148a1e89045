"""Packed float16 multiply-adds: the unit of each, and additions of packed accumulators to float32 ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codegen.sass.assemble.scheduling import control, result_cycles
from codegen.sass.isa import encoding
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import NO_SCOREBOARD, ZERO_REGISTER, Words
from codegen.sass.isa.latencies import Latencies
from codegen.sass.isa.opcodes import FADD, HADD2, HFMA2_IMMEDIATE, HFMA2_MMA_IMMEDIATE

HALF_FMA = HFMA2_IMMEDIATE | encoding.ALWAYS << 12
MATRIX_FMA = HFMA2_MMA_IMMEDIATE | encoding.ALWAYS << 12
ZERO_ADDEND = 1 << 82 - 64
"""Upper half of HFMA2 without an addend: it adds the lower half of RZ, twice."""
_TO_FLOAT = HADD2 | encoding.ALWAYS << 12 | ZERO_REGISTER << 24
_TO_FLOAT_HIGH = 1 << 78 - 64 | 1 << 72 - 64
"""Upper half of HADD2.F32 d, -RZ, b: converts a half to float32."""
_PARTS = (2, 3)
"""Values of the field at bit 60 for the lower and the upper half of the operand."""
_ADD = FADD | encoding.ALWAYS << 12
_MATRIX_CYCLES = 11
"""From a result of the tensor cores' unit to any use."""


def on_matrix_unit(
    result: NDArray[np.int64], addend: NDArray[np.int64], ends: NDArray[np.int64], architecture: Architecture
) -> NDArray[np.bool_]:
    """[instructions]: whether a multiply-add goes to the tensor cores' unit; about half of them do, if it has any.

    Its results come later. It takes multiply-adds whose accumulator is not added to again soon, nor read soon after one
    of the `ends`. `result` and `addend` are registers, or unique negative numbers for other instructions.
    """
    matrix = np.zeros(len(result), dtype=np.bool_)
    if not architecture.matrix_halves:
        return matrix
    alone, latencies = result >= 0, architecture.latencies
    soon = max(latencies.between("matrix", slot) for slot in ("half", "matrix"))
    for distance in range(1, soon):
        same = result[:-distance] == addend[distance:]
        alone[:-distance] &= ~same
        if distance < latencies.between("half", "matrix"):
            alone[distance:] &= ~same
    for distance in range(_MATRIX_CYCLES):
        alone[np.maximum(ends - distance, 0)] = False
    # Every second one of neighbours that may go there.
    chosen = np.flatnonzero(alone)
    multiply_adds = np.cumsum(result >= 0)
    starts = np.append(True, np.diff(multiply_adds[chosen]) > 1)[: len(chosen)]
    within = np.arange(len(chosen))
    within -= np.maximum.accumulate(np.where(starts, within, 0))
    matrix[chosen[within % 2 == 0]] = True
    return matrix


def reused(matrix: NDArray[np.bool_], load: NDArray[np.int64], element: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[multiply-adds]: whether each keeps its input for the next one of its unit.

    Each unit has an operand cache of its own. An operand that the next multiply-add does not use stays there, and a
    later one would find it even if its register has been loaded again. So the next one has to multiply the same element
    of the same load.
    """
    keeps = np.zeros(len(matrix), dtype=np.bool_)
    for unit in (matrix, ~matrix):
        places = np.flatnonzero(unit)
        here, following = places[:-1], places[1:]
        keeps[here] = (load[here] == load[following]) & (element[here] == element[following])
    return keeps


def added_up(
    packed: NDArray[np.int64],
    wide: NDArray[np.int64],
    first: NDArray[np.bool_],
    free: NDArray[np.int64],
    latencies: Latencies,
) -> Words:
    """Words that add packed accumulators [accumulators] to float32 ones [accumulators, 2], or to zero if `first`.

    `free` are at least two registers for temporary values.
    """
    at_once = len(free) // 2
    low, high, stall = [], [], []
    for begin in range(0, len(packed), at_once):
        chosen = slice(begin, begin + at_once)
        halves, targets = np.repeat(packed[chosen], 2), wide[chosen].ravel()
        addends = np.where(np.repeat(first[chosen], 2), ZERO_REGISTER, targets)
        count = len(halves)
        between = free[:count]
        low += [_TO_FLOAT | between << 16 | halves << 32 | np.tile(_PARTS, count // 2) << 60]
        low += [_ADD | targets << 16 | addends << 24 | between << 32]
        high += [np.full(count, _TO_FLOAT_HIGH), np.zeros(count, dtype=np.int64)]
        stalls = np.ones(2 * count, dtype=np.int64)
        stalls[count - 1] = max(1, latencies.between("half", "fma") + 1 - count)
        stall.append(stalls)
    stall[-1][-1] = result_cycles(latencies)
    cycles = np.concatenate(stall)
    none = np.zeros(len(cycles), dtype=np.int64)
    upper = np.concatenate(high) | control(cycles, none + NO_SCOREBOARD, none, none)
    return np.stack([np.concatenate(low).view(np.uint64), upper.view(np.uint64)], axis=1)
