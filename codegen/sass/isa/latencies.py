"""Least cycles from a result of fixed latency to its use on sm_90, as ptxas leaves them.

Measured on the output of ptxas 13.0.88: chains in which each writer stands right before each operand slot that can
read it (`tests/toolchain/latency_chains.py`), every layer in `tests/toolchain/operator_cases.py` (160,000 words) and,
for uniform results, 1,100 more skeletons (1.6 million words). A pair that was never seen at its least distance has a
longer one, at most the longest. IMAD.WIDE reads the upper half of its addend 2 cycles late, and delivers the lower half
of its result 2 cycles before the upper.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.opcodes import Opcode

RESULTS: Final = ("fma", "half", "matrix", "alu", "lower", "upper", "uniform")
"""Classes of results. lower, upper: halves of a wide product; IMAD.HI has the upper one only."""
_READERS: Final = ("fma", "half", "matrix", "alu", "multiplicand", "lower", "upper", "memory", "function")
SLOTS: Final = (*_READERS, "uniform", "control")
"""Classes of operand slots; the operands of IMAD.WIDE and IMAD.HI are two multiplicands and an addend of two halves."""
_RESULT_OF_UNIT: Final = {"float": "fma", "integer": "fma", "wide": "upper", "high": "upper"}
_SLOT_OF_UNIT: Final = {"float": "fma", "integer": "fma", "wide": "multiplicand", "high": "multiplicand"}

_LONGEST: Final = 13
_REGISTERS: Final = {
    "fma": (4, 5, 6, 5, 4, 4, 2, 5, 4),
    "half": (5, 4, 6, 5, 5, 5, 3, 5, 5),
    "matrix": (10, 10, 8, 10, 10, 10, 8, 7, 7),
    "alu": (5, 5, 6, 4, 5, 5, 3, 5, 4),
    "lower": (4, 4, 6, 3, 4, 4, 4, 5, 4),
    "upper": (4, 5, 6, 5, 6, 4, 4, 5, 4),
}
_PREDICATES: Final = {
    "alu": {"alu": 4, "fma": 5, "multiplicand": 5},
    "fma": {"alu": 5, "fma": 4},
    "upper": {"alu": 5, "fma": 4},
}
"""A predicate as an operand of these slots. As a guard, and for all other slots, it takes the longest."""
_UNIFORM: Final = {"uniform": 4, "alu": 6, "fma": 6, "multiplicand": 6, "memory": 9, "function": 12}
"""A uniform register or predicate, by the slot that reads it."""


def _table(rows: dict[str, dict[str, int]]) -> NDArray[np.int64]:
    return np.array([[rows.get(of, {}).get(by, _LONGEST) for by in SLOTS] for of in RESULTS], dtype=np.int64)


REGISTER_CYCLES: Final = _table({of: dict(zip(_READERS, each, strict=True)) for of, each in _REGISTERS.items()})
"""[result, slot]"""
PREDICATE_CYCLES: Final = _table(_PREDICATES)
"""[result, slot]"""
GUARD_CYCLES: Final = _LONGEST
UNIFORM_CYCLES: Final = np.array([_UNIFORM.get(slot, _LONGEST) for slot in SLOTS], dtype=np.int64)
"""[slot]"""
MOVED_UNIFORM_CYCLES: Final = 2
"""A uniform result of UMOV or ULDC, for every reader."""
OVERWRITE_CYCLES: Final = np.array([9 if of == "matrix" else 1 for of in RESULTS], dtype=np.int64)
"""[result]: until a word that does not read it may overwrite it."""
MATRIX_OVERWRITE_CYCLES: Final = 8
"""A result of HFMA2.MMA, for another HFMA2.MMA that overwrites it."""
RELOAD_CYCLES: Final = 2
"""From a word that reads a register to a load into the register."""
BRANCH_CYCLES: Final = 5
"""From a branch to the word that it goes to."""
LONGEST: Final = int(max(REGISTER_CYCLES.max(), PREDICATE_CYCLES.max(), OVERWRITE_CYCLES.max(), GUARD_CYCLES))
"""Every result of a fixed latency has arrived after this many cycles."""
SETTLING_CYCLES: Final = 2
"""From a word that sets a scoreboard to one that waits for it."""
SPARE_REGISTERS: Final = 2
"""A kernel's register count is at least this many more than the registers that its words name."""


def register_cycles(result: str, slot: str) -> int:
    """Least cycles from a result in a register to an operand, by class."""
    return int(REGISTER_CYCLES[RESULTS.index(result), SLOTS.index(slot)])


def result_index(opcode: Opcode) -> int:
    """The place in RESULTS of an opcode's result of fixed latency, the upper half if it has two; else 0."""
    result = _RESULT_OF_UNIT.get(opcode.unit, opcode.unit)
    return RESULTS.index(result) if result in RESULTS else 0


def slot_index(opcode: Opcode) -> int:
    """The place in SLOTS of an opcode's operands, the multiplicands if it has wide addends."""
    slot = _SLOT_OF_UNIT.get(opcode.unit, opcode.unit)
    return SLOTS.index(slot if slot in SLOTS else "memory")
