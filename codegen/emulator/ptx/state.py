"""The state of the lanes of a PTX run: registers and memories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from codegen.emulator.alu.arithmetic import Mask
from codegen.emulator.alu.fused import FusedMultiplyAdd
from codegen.emulator.faults import UnsupportedError
from codegen.emulator.memory.clusters import Clusters
from codegen.emulator.memory.global_memory import GlobalMemory, Selection
from codegen.emulator.memory.shared_memory import AsyncCopies, SharedMemory
from codegen.emulator.ptx.liveness import Liveness
from codegen.emulator.ptx.registers import Registers
from codegen.ptx.instruction import Operand

Step = Callable[[Mask], None]
"""Runs one instruction for all lanes of a mask; its operands are bound to their arrays."""


@dataclass(frozen=True)
class State:
    """The lanes of all blocks, or a window of them: block after block, x fastest within a block."""

    lanes: int
    registers: Registers
    parameters: Mapping[str, bytes]
    buffers: GlobalMemory
    shared: SharedMemory
    copies: AsyncCopies
    fused: FusedMultiplyAdd
    clusters: Clusters
    liveness: Liveness
    predicated: Counter[str] = field(default_factory=Counter)
    """Executions of predicated opcodes, counted once per lane."""
    first: int = 0
    """First lane of the window, as memories number the lanes of all blocks."""

    def window(self, first: int, end: int) -> State:
        """This state for the lanes `first` to `end` only."""
        if (first, end) == (self.first, self.first + self.lanes):
            return self
        registers, fused = self.registers.window(slice(first, end)), self.fused.window(end - first)
        return replace(self, lanes=end - first, first=first, registers=registers, fused=fused)

    def among_all(self, chosen: Selection) -> Selection:
        """Lanes of this window, numbered among all lanes."""
        if isinstance(chosen, slice):
            return slice(self.first, self.first + self.lanes)
        return chosen + self.first if self.first else chosen


def selected(mask: Mask) -> Selection:
    """A mask as an index into registers."""
    return slice(None) if mask is None else np.flatnonzero(mask)


def expect(operands: tuple[Operand, ...], count: int) -> tuple[Operand, ...]:
    """The operands. Raises UnsupportedError unless there are `count`."""
    if len(operands) != count:
        raise UnsupportedError(f"{len(operands)} operands, {count} expected")
    return operands
