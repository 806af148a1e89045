"""Classes of results of fixed latency and of the operands that use them, and the least cycles between the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.opcodes import Opcode

RESULTS: Final = ("fma", "half", "matrix", "alu", "lower", "upper", "uniform", "dual", "pair")
"""Classes of results. lower, upper: halves of a wide product; IMAD.HI has the upper one only. dual, pair: `Unit`."""
READERS: Final = ("fma", "half", "matrix", "alu", "multiplicand", "lower", "upper", "memory", "function")
MORE_READERS: Final = ("dual", "pair")
SLOTS: Final = (*READERS, *MORE_READERS, "uniform", "control")
"""Classes of operand slots; the operands of IMAD.WIDE and IMAD.HI are two multiplicands and an addend of two halves."""
_RESULT_OF_UNIT: Final = {"float": "fma", "integer": "fma", "wide": "upper", "high": "upper"}
_SLOT_OF_UNIT: Final = {"float": "fma", "integer": "fma", "wide": "multiplicand", "high": "multiplicand"}

MATRIX: Final = RESULTS.index("matrix")
SETTLING_CYCLES: Final = 2
"""From a word that sets a scoreboard to one that waits for it."""
RELOAD_CYCLES: Final = 2
"""From a word that reads a register to a load into the register."""
BRANCH_CYCLES: Final = 5
"""From a branch to the word that it goes to."""
SPARE_REGISTERS: Final = 2
"""A kernel's register count is at least this many more than the registers that its words name."""


@dataclass(frozen=True, eq=False)
class Latencies:
    """Least cycles between a result of fixed latency and the words that use or overwrite it, on one architecture."""

    registers: NDArray[np.int64]
    """[result, slot]"""
    predicates: NDArray[np.int64]
    """[result, slot]"""
    guard: int
    """A predicate as a guard."""
    uniform: NDArray[np.int64]
    """[slot]: a uniform register or predicate."""
    moved_uniform: int
    """A uniform result of UMOV or ULDC, for every reader."""
    overwrite: NDArray[np.int64]
    """[result]: until a word that does not read it may overwrite it."""
    matrix_overwrite: int
    """A result of HFMA2.MMA, for another HFMA2.MMA that overwrites it."""
    load_overwrite: int
    """Any result, for a word of unknown latency that overwrites it."""

    @staticmethod
    def of(
        registers: Mapping[str, Sequence[int]],
        predicates: Mapping[str, Mapping[str, int]],
        uniform: Mapping[str, int],
        *,
        longest: int,
        moved_uniform: int,
        overwritten_matrix: tuple[int, int],
        overwritten_by_load: int = 1,
        more: Mapping[str, tuple[int, int]] | None = None,
    ) -> Latencies:
        """From rows by result; a register's operand slots in the order of READERS, others by name.

        `more` has a register's slots in the order of MORE_READERS. What has no figure takes the `longest`.
        `overwritten_matrix` are the cycles of a result of HFMA2.MMA until another unit, and until the same one,
        overwrites it.
        """

        def table(rows: Mapping[str, Mapping[str, int]]) -> NDArray[np.int64]:
            return np.array([[rows.get(of, {}).get(by, longest) for by in SLOTS] for of in RESULTS], dtype=np.int64)

        other, same = overwritten_matrix
        of_more = {of: dict(zip(MORE_READERS, each, strict=True)) for of, each in (more or {}).items()}
        of_all = {of: dict(zip(READERS, each, strict=True)) | of_more.get(of, {}) for of, each in registers.items()}
        return Latencies(
            registers=table(of_all),
            predicates=table(predicates),
            guard=longest,
            uniform=np.array([uniform.get(slot, longest) for slot in SLOTS], dtype=np.int64),
            moved_uniform=moved_uniform,
            overwrite=np.array([{"matrix": other, "pair": 2}.get(of, 1) for of in RESULTS], dtype=np.int64),
            matrix_overwrite=same,
            load_overwrite=overwritten_by_load,
        )

    @cached_property
    def longest(self) -> int:
        """Every result of a fixed latency has arrived after this many cycles."""
        return int(max(self.registers.max(), self.predicates.max(), self.overwrite.max(), self.guard))

    def between(self, result: str, slot: str) -> int:
        """Least cycles from a result in a register to an operand, by class."""
        return int(self.registers[RESULTS.index(result), SLOTS.index(slot)])


def result_index(opcode: Opcode) -> int:
    """The place in RESULTS of an opcode's result of fixed latency, the upper half if it has two; else 0."""
    result = _RESULT_OF_UNIT.get(opcode.unit, opcode.unit)
    return RESULTS.index(result) if result in RESULTS else 0


def slot_index(opcode: Opcode) -> int:
    """The place in SLOTS of an opcode's operands, the multiplicands if it has wide addends."""
    slot = _SLOT_OF_UNIT.get(opcode.unit, opcode.unit)
    return SLOTS.index(slot if slot in SLOTS else "memory")
