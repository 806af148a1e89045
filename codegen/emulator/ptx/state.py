"""What the steps of one run work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.fused import FusedMultiplyAdd
from codegen.emulator.faults import UnsupportedError
from codegen.emulator.memory.clusters import Clusters
from codegen.emulator.memory.global_memory import GlobalMemory, Selection
from codegen.emulator.memory.shared_memory import AsyncCopies, SharedMemory
from codegen.emulator.ptx.registers import Registers
from codegen.ptx.instruction import Operand

Mask = NDArray[np.bool_] | None
"""The lanes that run; None is all of them."""

Step = Callable[[Mask], None]
"""One instruction over all lanes of a mask, its operands bound to their arrays."""


@dataclass(frozen=True)
class Machine:
    """The state of the lanes: block after block, and within a block x fastest; or a window on some of them."""

    lanes: int
    registers: Registers
    parameters: Mapping[str, bytes]
    buffers: GlobalMemory
    shared: SharedMemory
    copies: AsyncCopies
    fused: FusedMultiplyAdd
    clusters: Clusters
    predicated: Counter[str] = field(default_factory=Counter)
    """Opcodes run under a predicate, counted once per lane."""
    first: int = 0
    """First lane of a window: memory knows lanes by their number among all."""

    def window(self, first: int, end: int) -> Machine:
        """The same machine, but its registers are those of lanes `first` to `end` only."""
        if (first, end) == (self.first, self.first + self.lanes):
            return self
        registers, fused = self.registers.window(slice(first, end)), self.fused.window(end - first)
        return replace(self, lanes=end - first, first=first, registers=registers, fused=fused)

    def among_all(self, chosen: Selection) -> Selection:
        """Lanes of this window by their numbers among all."""
        if isinstance(chosen, slice):
            return slice(self.first, self.first + self.lanes)
        return chosen + self.first if self.first else chosen


def selected(mask: Mask) -> Selection:
    """A mask as an index into registers."""
    return slice(None) if mask is None else np.flatnonzero(mask)


def expect(operands: tuple[Operand, ...], count: int) -> tuple[Operand, ...]:
    """The operands, if there are as many as that."""
    if len(operands) != count:
        raise UnsupportedError(f"{len(operands)} operands, {count} expected")
    return operands
