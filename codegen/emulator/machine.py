"""What the steps of one run work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.faults import UnsupportedError
from codegen.emulator.fused import FusedMultiplyAdd
from codegen.emulator.global_memory import GlobalMemory, Selection
from codegen.emulator.registers import Registers
from codegen.emulator.shared_memory import AsyncCopies, SharedMemory
from codegen.ptx import Operand

Mask = NDArray[np.bool_] | None
"""The lanes that run; None is all of them."""

Step = Callable[[Mask], None]
"""One instruction over all lanes of a mask, its operands bound to their arrays."""


@dataclass(frozen=True)
class Machine:
    """The state of all lanes: block after block, and within a block x fastest."""

    lanes: int
    registers: Registers
    parameters: Mapping[str, bytes]
    buffers: GlobalMemory
    shared: SharedMemory
    copies: AsyncCopies
    fused: FusedMultiplyAdd
    predicated: Counter[str] = field(default_factory=Counter)
    """Opcodes run under a predicate, counted once per lane."""


def selected(mask: Mask) -> Selection:
    """A mask as an index."""
    return slice(None) if mask is None else np.flatnonzero(mask)


def expect(operands: tuple[Operand, ...], count: int) -> tuple[Operand, ...]:
    """The operands, if there are as many as that."""
    if len(operands) != count:
        raise UnsupportedError(f"{len(operands)} operands, {count} expected")
    return operands
