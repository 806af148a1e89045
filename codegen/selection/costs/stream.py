"""The instruction stream of an average K group, in numbers: what it issues, fetches and loads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from codegen.kernels.register_budget import registers_wanted
from codegen.kernels.weight_stream import PRODUCTS_TOGETHER
from codegen.kernels.workload import Workload

ACCUMULATE_INSTRUCTIONS = 4.0
"""Instructions per packed sum that is added up in float32: two conversions, two additions."""
CHUNK_INSTRUCTIONS = 4.7
"""Instructions of a chunk beside its copies and multiply-adds."""
PROLOGUE_INSTRUCTIONS = 112.0
"""Instructions before the first chunk."""


@dataclass(frozen=True)
class Stream:
    """Instructions of one thread for one K group, its zero weights left out."""

    multiply_adds: float
    loads: float
    copies: float
    """Instructions issued for all copies to shared memory."""
    copy_code: float
    """Instructions in the code for these copies: as many, or those of a loop in each chunk."""
    accumulations: float
    """Instructions that add packed sums up in float32."""
    chunks: int
    stores: int
    preparing: float
    """Instructions that bring inputs within bounds, or multiply them by their gates."""

    @staticmethod
    def of(workload: Workload, density: float) -> Stream:
        """The stream of an average K group at a density (non-zeros / weights)."""
        of_chunk = density * workload.terms / max(1, workload.packed_sums * workload.chunks)
        together = max(1, math.floor(PRODUCTS_TOGETHER / max(of_chunk, 1.0 / workload.chunks)))
        added = workload.packed_sums * math.ceil(workload.chunks / together)
        copies = workload.copies * workload.copy_instructions
        return Stream(
            multiply_adds=workload.terms * density,
            loads=_used(workload.inputs, workload, density) + _used(workload.gate_loads, workload, density),
            copies=copies,
            copy_code=workload.loop_instructions * workload.chunks or copies,
            # A sum that no weight was added to stays as it is.
            accumulations=ACCUMULATE_INSTRUCTIONS * added * (1 - (1 - density) ** (workload.terms / max(1, added))),
            chunks=workload.chunks,
            stores=workload.stores,
            preparing=_used(workload.prepared, workload, density),
        )

    @property
    def instructions(self) -> float:
        """Instructions to issue."""
        return self.code - self.copy_code + self.copies + PROLOGUE_INSTRUCTIONS

    @cached_property
    def code(self) -> float:
        """Instructions to fetch."""
        work = self.multiply_adds + self.loads + self.preparing + self.copy_code + self.accumulations
        return work + self.chunks * CHUNK_INSTRUCTIONS + self.stores

    @property
    def code_bytes(self) -> float:
        return 16 * self.code


def _used(count: int, workload: Workload, density: float) -> float:
    """Expected number of `count` items used by at least one non-zero term; all terms share the items evenly."""
    return count * (1 - float((1 - density) ** (workload.terms / count))) if count else 0.0


def norm(terms: Iterable[float], overlap: float) -> float:
    """Combined terms of a time: between their sum (1) and their maximum (infinity)."""
    total = 0.0
    for term in terms:  # not by `sum`, which adds floats up differently from Python 3.12 on
        total += term**overlap
    return float(total ** (1 / overlap))


def registers_of(workload: Workload) -> int:
    """Estimated registers of a thread."""
    return min(workload.most_registers, registers_wanted(workload.sums, workload.pointers, workload.held))
