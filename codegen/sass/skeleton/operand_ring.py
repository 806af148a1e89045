"""Operand ring: the registers that a skeleton leaves to the inputs of each chunk, as its markers name them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.isa import encoding
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import Words
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton.marker_ptx import BANKS


@dataclass(frozen=True, eq=False)
class OperandRing:
    """The places that inputs are loaded into in turn, each of one register or more."""

    registers: NDArray[np.int64]
    """[chunks, places]: the first register of each place."""
    loads: NDArray[np.int64]
    """The markers before the first use of each place: [chunks, places], or [1, places] if the ring lasts."""
    stores: NDArray[np.int64]
    """[chunks, places]: the markers behind the last use of each place."""
    overlaps: bool
    """Whether the ring keeps its registers from the first chunk to the last."""

    @staticmethod
    def of(
        words: Words,
        loads: NDArray[np.int64],
        stores: NDArray[np.int64],
        chunks: int,
        width: int,
        architecture: Architecture,
        *,
        fewer: bool,
    ) -> OperandRing:
        """From the markers of a kernel; `width` is the number of registers of a place.

        With `fewer`, places whose registers ptxas changes or uses in between are left out. Raises MachineCodeError if
        none are left, or without `fewer` if any is unusable.
        """
        overlaps = len(loads) < len(stores)
        times = chunks if overlaps else 1
        if not len(loads) or len(loads) * times != len(stores) or len(stores) % chunks:
            raise MachineCodeError(f"{len(loads)} and {len(stores)} markers of the ring for {chunks} chunks")
        stores = stores.reshape(chunks, -1)
        loads = loads.reshape(-1, stores.shape[1])
        registers = encoding.SOURCE_B.get(words)[stores]
        kept = registers == encoding.DESTINATION.get(words)[loads]
        if not overlaps:
            writes = operands(words, architecture).writes
            for beyond in range(width):
                kept &= writes.following(registers + beyond, loads + 1) >= stores
        if not kept.all():
            count = int(kept.sum(axis=1).min()) // BANKS * BANKS
            if not fewer or not count:
                raise MachineCodeError("the ring changes its registers between two of its markers")
            registers = np.array([row[which][:count] for row, which in zip(registers, kept, strict=True)])
        return OperandRing(registers, loads, stores, overlaps)
