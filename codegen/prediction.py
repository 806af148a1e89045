"""Predicts how long a kernel runs, well enough to rank tilings.

The terms: instructions to issue, the instruction stream against the instruction caches, latency of a lone warp, DRAM
traffic. The constants were fitted to 650 kernels of the ten operators of Dong et al. measured on one H200 (two batches,
sparsity 0.9); BENCHMARKS.md says how well the first choice does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from codegen.operators import launch_of, operator_of
from codegen.operators.work import Work
from codegen.spec import LayerSpec
from codegen.tiling import Tiling

MULTIPROCESSORS = 132
CLOCKS_PER_MICROSECOND = 1755.0
REGISTERS = 65536
WARPS = 64
BLOCKS = 32
SHARED_BYTES = 220_000

ISSUE_PER_CLOCK = 4.0
"""Warp instructions a multiprocessor issues."""
CACHED_INSTRUCTIONS = 1850
"""Instructions near the schedulers: about 30 KB."""
CACHED_PER_CLOCK = 10.0
WARP_CLOCKS = 1.02
"""Of one instruction of a warp that has its scheduler to itself."""
STREAMED_PER_CLOCK = 0.615
"""Instructions of a stream beyond that, however many warps follow it."""
COPY_INSTRUCTIONS = 3.6
LOAD_INSTRUCTIONS = 1.6
CONFLICT_INSTRUCTIONS = 3.5
"""Of a load, for each further access that a bank conflict makes of it."""
CHUNK_INSTRUCTIONS = 5.8
STORE_INSTRUCTIONS = 1.05
PROLOGUE_INSTRUCTIONS = 55.0
CHUNK_CLOCKS = 159.0
"""Waiting for a chunk and its barrier."""
WAVE_CLOCKS = 100.0
OVERLAP = 1.2
"""How issue, fetch and latency combine: a norm between sum (1) and maximum (infinity)."""
L2_BYTES_PER_MICROSECOND = 5.46e6
DRAM_BYTES_PER_MICROSECOND = 4.0e6
MEMORY_OVERLAP = 4.6
LAUNCH_MICROSECONDS = 1.2


@dataclass(frozen=True)
class Stream:
    """What one thread runs of one K group, its zero weights left out."""

    multiply_adds: float
    loads: float
    copies: float
    chunks: int
    stores: int

    @staticmethod
    def of(work: Work, density: float) -> Stream:
        """The stream of an average K group at a density (non-zeros / weights)."""
        return Stream(
            multiply_adds=work.terms * density,
            loads=work.inputs * (1 - (1 - density) ** (work.terms / work.inputs)),
            copies=work.copies,
            chunks=work.chunks,
            stores=work.stores,
        )

    @property
    def instructions(self) -> float:
        """To issue."""
        return (
            self.multiply_adds
            + self.loads * LOAD_INSTRUCTIONS
            + self.copies * COPY_INSTRUCTIONS
            + self.chunks * CHUNK_INSTRUCTIONS
            + self.stores * STORE_INSTRUCTIONS
            + PROLOGUE_INSTRUCTIONS
        )

    @property
    def code(self) -> float:
        """Instructions to fetch."""
        copies = self.copies * COPY_INSTRUCTIONS
        return self.multiply_adds + self.loads + copies + self.chunks * CHUNK_INSTRUCTIONS + self.stores

    @property
    def code_bytes(self) -> float:
        return 16 * self.code


def registers_of(work: Work) -> int:
    """About how many registers a thread needs."""
    return work.sums + 30 + 4 * work.pointers


def predict_microseconds(spec: LayerSpec, tiling: Tiling, batch: int, density: float) -> float:
    """The time of one launch on an H200; `spec` is canonical."""
    work = operator_of(spec).work(spec, tiling)
    stream = Stream.of(work, density)
    launch = launch_of(spec, tiling)
    warps = math.ceil(tiling.threads / 32)
    registers = min(255, registers_of(work))
    resident = min(
        BLOCKS, REGISTERS // (registers * warps * 32), WARPS // warps, SHARED_BYTES // (launch.shared_bytes + 1024)
    )
    resident = max(1, resident)
    x, y, groups = launch.grid_at(batch)
    blocks_per_group = x * y
    blocks = blocks_per_group * groups

    def wave_clocks(blocks_here: int) -> float:
        # Blocks of one multiprocessor stand a whole round of multiprocessors apart in the grid.
        streams = min(groups, blocks_here, math.ceil(blocks_here * MULTIPROCESSORS / blocks_per_group))
        issue = (
            (stream.instructions + stream.loads * CONFLICT_INSTRUCTIONS * (work.conflicts - 1))
            * warps
            * blocks_here
            / ISSUE_PER_CLOCK
        )
        code = stream.code * streams
        beyond = max(0.0, code - CACHED_INSTRUCTIONS)
        fetch = beyond / STREAMED_PER_CLOCK + min(code, CACHED_INSTRUCTIONS) / CACHED_PER_CLOCK
        terms = (issue, fetch, stream.instructions * WARP_CLOCKS)
        together = float(sum(term**OVERLAP for term in terms) ** (1 / OVERLAP))
        return together + WAVE_CLOCKS + stream.chunks * CHUNK_CLOCKS

    full_waves = math.ceil(blocks / (MULTIPROCESSORS * resident)) - 1
    rest = blocks - full_waves * MULTIPROCESSORS * resident
    clocks = full_waves * wave_clocks(resident) + wave_clocks(math.ceil(rest / MULTIPROCESSORS))
    moved = blocks * work.tile_bytes + batch * work.output_bytes
    l2 = moved / L2_BYTES_PER_MICROSECOND
    dram = batch * (work.input_bytes + work.output_bytes) / DRAM_BYTES_PER_MICROSECOND
    compute = clocks / CLOCKS_PER_MICROSECOND
    return (
        float(sum(term**MEMORY_OVERLAP for term in (compute, l2, dram)) ** (1 / MEMORY_OVERLAP)) + LAUNCH_MICROSECONDS
    )
