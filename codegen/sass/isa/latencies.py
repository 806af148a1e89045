"""How many cycles a result of a fixed latency needs until it is read: the shortest that ptxas leaves, on sm_90.

Measured over ptxas 13.0.88's output for every kind of layer in `tests/toolchain/operator_cases.py`, 160,000 words: per
unit that writes and unit that reads, the least distance in issue cycles. A pair that ptxas never made has the longest
of its writer or more. IMAD.WIDE reads the upper half of its addend 2 cycles late, and the lower half of its result is
there 2 cycles before the upper. Uniform results: 1,100 skeletons more, 1.6 million words.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.opcodes import Opcode

_READERS: Final = ("float", "half", "matrix", "alu", "integer", "wide", "upper", "high", "memory", "function")
UNITS: Final = (*_READERS, "uniform", "control")
"""matrix: HFMA2.MMA, which runs on the tensor cores' unit; integer: IMAD and VIADD; upper: the upper half of the result
of IMAD.WIDE, and of an addend of 64 bits; high: IMAD.HI; memory: all results of an unknown latency but MUFU's, which
are function's."""

_LONGEST: Final = 13
_REGISTERS: Final = {
    "float": (4, 5, 6, 5, 5, 5, 3, 5, 5, 4),
    "half": (5, 4, 6, 5, 5, 5, 3, 5, 5, 5),
    "matrix": (10, 10, 8, 10, 10, 10, 8, 10, 7, 7),
    "alu": (5, 5, 6, 4, 5, 5, 3, 5, 5, 5),
    "integer": (4, 5, 6, 5, 4, 4, 2, 4, 5, 5),
    "wide": (5, 5, 6, 3, 4, 4, 4, 4, 5, 5),
    "upper": (5, 5, 6, 5, 4, 4, 4, 4, 5, 5),
    "high": (13, 13, 13, 5, 10, 13, 13, 13, 13, 13),
}
_PREDICATES: Final = {"alu": 4, "integer": 5}
"""A predicate among the operands of these; as a guard, or where control or memory depends on it, it takes longest."""
_UNIFORM: Final = {"uniform": 4, "alu": 6, "integer": 6, "wide": 6, "memory": 9, "function": 12}
"""A uniform register or predicate, by the unit that reads it."""
_MOVED: Final = 2
"""The same of one that UMOV or ULDC wrote, whoever reads it."""
_OVERWRITTEN: Final = {"matrix": {"matrix": 8}}
_OVERWRITTEN_BY_OTHERS: Final = {"matrix": 9}


def _table(rows: dict[str, dict[str, int]], default: int) -> NDArray[np.int64]:
    return np.array([[rows.get(to, {}).get(by, default) for by in UNITS] for to in UNITS], dtype=np.int64)


REGISTER_CYCLES: Final = _table(
    {to: dict(zip(_READERS, each, strict=True)) for to, each in _REGISTERS.items()}, _LONGEST
)
"""[unit that writes, unit that reads]"""
PREDICATE_CYCLES: Final = np.array([_PREDICATES.get(unit, _LONGEST) for unit in UNITS], dtype=np.int64)
"""[unit that reads]"""
GUARD_CYCLES: Final = _LONGEST
UNIFORM_CYCLES: Final = np.array([_UNIFORM.get(unit, _LONGEST) for unit in UNITS], dtype=np.int64)
"""[unit that reads]"""
MOVED_UNIFORM_CYCLES: Final = _MOVED
OVERWRITE_CYCLES: Final = np.array(
    [[_OVERWRITTEN.get(to, {}).get(by, _OVERWRITTEN_BY_OTHERS.get(to, 1)) for by in UNITS] for to in UNITS],
    dtype=np.int64,
)
"""[unit that writes, unit that writes the same register after it]"""
LONGEST: Final = int(max(REGISTER_CYCLES.max(), PREDICATE_CYCLES.max(), OVERWRITE_CYCLES.max(), GUARD_CYCLES))
"""Whatever has a fixed latency is there after so many."""
SETTLING_CYCLES: Final = 2
"""From what sets a scoreboard to what waits for it."""
SPARE_REGISTERS: Final = 2
"""A kernel's register count is so many above the registers that its words name."""


def unit_index(opcode: Opcode) -> int:
    """The place in UNITS of the unit that executes an opcode."""
    return UNITS.index(opcode.unit if opcode.unit in UNITS else "memory")
