"""Least cycles from a result of fixed latency to its use on sm_90, as ptxas leaves them.

Measured on the output of ptxas 13.0.88 for every layer in `tests/toolchain/operator_cases.py` (160,000 words) and, for
uniform results, in 1,100 more skeletons (1.6 million words): the least distance in issue cycles for each pair of a
unit that writes and a unit that reads. A pair that was never seen has the writer's longest latency or more. IMAD.WIDE
reads the upper half of its addend 2 cycles late, and delivers the lower half of its result 2 cycles before the upper.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.opcodes import Opcode

_READERS: Final = ("float", "half", "matrix", "alu", "integer", "wide", "upper", "high", "memory", "function")
UNITS: Final = (*_READERS, "uniform", "control")
"""The units of `opcodes.Unit`, except: upper is the upper half of IMAD.WIDE's result or of a 64-bit addend, and memory
stands for all asynchronous units but function."""

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
"""A predicate as an operand of these units. As a guard, and for all other units, it takes the longest."""
_UNIFORM: Final = {"uniform": 4, "alu": 6, "integer": 6, "wide": 6, "memory": 9, "function": 12}
"""A uniform register or predicate, by the unit that reads it."""
_MOVED: Final = 2
"""A uniform result of UMOV or ULDC, for every reader."""
_OVERWRITTEN: Final = {"matrix": {"matrix": 8}}
"""By unit that writes, then unit that writes the same register next."""
_OVERWRITTEN_BY_OTHERS: Final = {"matrix": 9}
"""By unit that writes, for all units not in `_OVERWRITTEN`; 1 for all others."""


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
"""Every result of a fixed latency has arrived after this many cycles."""
SETTLING_CYCLES: Final = 2
"""From a word that sets a scoreboard to one that waits for it."""
SPARE_REGISTERS: Final = 2
"""A kernel's register count is at least this many more than the registers that its words name."""


def unit_index(opcode: Opcode) -> int:
    """The place in UNITS of the unit that executes an opcode."""
    return UNITS.index(opcode.unit if opcode.unit in UNITS else "memory")
