"""Predicts how long a kernel runs, well enough to rank tilings.

The terms: instructions to issue, the instruction stream against the instruction caches, latency of a lone warp, DRAM
traffic. The constants were fitted to 650 kernels of the ten operators of Dong et al. measured on one H200 (two batches,
sparsity 0.9); BENCHMARKS.md says how well the first choice does.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from codegen.operators import launch_of
from codegen.operators.conv2d import chunks, groups, input_tile, tiles
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
    """What one thread runs of one K group."""

    multiply_adds: float
    loads: float
    copies: float
    chunks: int
    stores: int

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


def stream_of(spec: LayerSpec, tiling: Tiling, density: float) -> Stream:
    """The stream of an average K group at a density (non-zeros / weights)."""
    kernels = min(tiling.group_kernels, spec.kernels)
    height, width = input_tile(spec, tiling)
    window_rows = (tiling.rows - 1) * spec.stride[0] + spec.kernel_height
    taps = spec.channels * window_rows * spec.kernel_width
    terms = kernels * tiling.rows * spec.channels * spec.kernel_height * spec.kernel_width
    return Stream(
        multiply_adds=terms * density,
        loads=taps * (1 - (1 - density) ** (terms / taps)),
        copies=spec.channels * math.ceil(height * width / tiling.threads),
        chunks=chunks(spec, tiling),
        stores=kernels * tiling.rows,
    )


def registers_of(spec: LayerSpec, tiling: Tiling) -> int:
    """About how many registers a thread needs."""
    height, width = input_tile(spec, tiling)
    sums = min(tiling.group_kernels, spec.kernels) * tiling.rows
    return sums + 24 + min(12, 2 * spec.kernel_width) + 4 * math.ceil(height * width / tiling.threads)


def predict_microseconds(spec: LayerSpec, tiling: Tiling, batch: int, density: float) -> float:
    """The time of one launch on an H200."""
    stream = stream_of(spec, tiling, density)
    warps = math.ceil(tiling.threads / 32)
    registers = min(255, registers_of(spec, tiling))
    shared_bytes = launch_of(spec, tiling).shared_bytes + 1024
    resident = min(BLOCKS, REGISTERS // (registers * warps * 32), WARPS // warps, SHARED_BYTES // shared_bytes)
    resident = max(1, resident)
    down, across = tiles(spec, tiling)
    blocks_per_group = down * across * batch
    blocks = blocks_per_group * groups(spec, tiling)

    conflicts = bank_conflicts(spec, tiling)

    def wave_clocks(blocks_here: int) -> float:
        # Blocks of one multiprocessor stand a whole round of multiprocessors apart in the grid.
        streams = min(groups(spec, tiling), blocks_here, math.ceil(blocks_here * MULTIPROCESSORS / blocks_per_group))
        issue = (
            (stream.instructions + stream.loads * CONFLICT_INSTRUCTIONS * (conflicts - 1))
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
    height, width = input_tile(spec, tiling)
    # A row of the tile starts anywhere in a 32-byte sector.
    tile_bytes = 32 * height * ((4 * width + 28) / 32)
    moved = blocks * spec.channels * tile_bytes + 4 * batch * math.prod(spec.output_shape)
    l2 = moved / L2_BYTES_PER_MICROSECOND
    dram = 4 * batch * (math.prod(spec.input_shape) + math.prod(spec.output_shape)) / DRAM_BYTES_PER_MICROSECOND
    compute = clocks / CLOCKS_PER_MICROSECOND
    return (
        float(sum(term**MEMORY_OVERLAP for term in (compute, l2, dram)) ** (1 / MEMORY_OVERLAP)) + LAUNCH_MICROSECONDS
    )


def bank_conflicts(spec: LayerSpec, tiling: Tiling) -> int:
    """How many accesses one load of a warp becomes: its lanes' addresses over 32 banks."""
    _, width = input_tile(spec, tiling)
    words = {
        lane // tiling.tile_width * tiling.rows * spec.stride[0] * width + lane % tiling.tile_width * spec.stride[1]
        for lane in range(min(32, tiling.threads))
    }
    return max(Counter(word % 32 for word in words).values())
