"""The registers that a skeleton leaves to inputs, chunk by chunk, as its markers name them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import Words
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton.marker_ptx import BANKS


@dataclass(frozen=True, eq=False)
class Ring:
    """The places that inputs are loaded into in turn."""

    registers: NDArray[np.int64]
    """[chunks, places]: the first register of each place."""
    loads: NDArray[np.int64]
    """[chunks, places] of a ring that each chunk begins anew, [1, places] of one that lasts: the markers before,"""
    stores: NDArray[np.int64]
    """[chunks, places]: and those behind what has the place."""
    runs_on: bool
    """Whether it lasts from the first chunk to the last."""

    @staticmethod
    def of(
        words: Words, loads: NDArray[np.int64], stores: NDArray[np.int64], chunks: int, width: int, *, fewer: bool
    ) -> Ring:
        """Of a kernel's markers; `fewer` places do too, if ptxas has others' registers changed or used in between.

        `width` is the number of registers of a place. Raises MachineCodeError if there are too few.
        """
        runs_on = len(loads) < len(stores)
        times = chunks if runs_on else 1
        if not len(loads) or len(loads) * times != len(stores) or len(stores) % chunks:
            raise MachineCodeError(f"{len(loads)} and {len(stores)} markers of the ring for {chunks} chunks")
        stores = stores.reshape(chunks, -1)
        loads = loads.reshape(-1, stores.shape[1])
        registers = encoding.SOURCE_B.get(words)[stores]
        kept = registers == encoding.DESTINATION.get(words)[loads]
        if not runs_on:
            writes = operands(words).writes
            for beyond in range(width):
                kept &= writes.following(registers + beyond, loads + 1) >= stores
        if not kept.all():
            count = int(kept.sum(axis=1).min()) // BANKS * BANKS
            if not fewer or not count:
                raise MachineCodeError("the ring changes its registers between two of its markers")
            registers = np.array([row[which][:count] for row, which in zip(registers, kept, strict=True)])
        return Ring(registers, loads, stores, runs_on)
