"""Predicts how long a kernel runs, well enough to rank tilings.

The terms: instructions to issue, loads from shared memory, the instruction stream against three levels of instruction
caches, latency of a lone warp, L2 and DRAM traffic. The constants were fitted to 1,300 kernels of the ten operators of
Dong et al. and of layers of ResNet-50 measured on one H200 with their code in the caches (two batches, sparsity 0.9).
In a network it is not, as other layers run between two runs of one: then the first blocks fetch all of theirs, at a
rate fitted to kernels of five networks timed so; of float16, where half as many threads follow a stream, at one fitted
to 108 kernels of ResNet-18. BENCHMARKS.md says how well the first choice does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from codegen.operators import AnyTiled
from codegen.operators.conv2d import ELEMENT_BYTES
from codegen.operators.registers import REGISTERS, allocated, registers_wanted
from codegen.operators.stream import PRODUCTS_TOGETHER
from codegen.operators.tabled import table_bytes
from codegen.operators.work import Work
from codegen.spec import Conv2d

MULTIPROCESSORS = 132
CLOCKS_PER_MICROSECOND = 1755.0
WARPS = 64
BLOCKS = 32
SHARED_BYTES = 220_000

ISSUE_PER_CLOCK = 4.0
"""Warp instructions a multiprocessor issues."""
NEAR_INSTRUCTIONS, NEAR_PER_CLOCK = 2275, 1.97
"""Instructions that the caches next to a multiprocessor's schedulers hold (about 36 KB), and how fast they come."""
CACHED_INSTRUCTIONS, CACHED_PER_CLOCK = 6517, 0.303
"""What the multiprocessor's own cache holds (about 104 KB), and how fast the rest of that comes."""
DISTANT_PER_CLOCK = 0.168
"""How fast what is beyond comes, from the L2 cache."""
COLD_PER_CLOCK = 0.11
"""How fast all of it comes to a multiprocessor's first blocks in a network, where other layers ran before."""
PACKED_COLD_PER_CLOCK = 0.07
"""The same of float16 for each of those blocks: while one waits for its code, others fetch theirs."""
WARP_CLOCKS = 2.0
"""Clocks per instruction of a warp that has its scheduler to itself."""
LOAD_CLOCKS = 0.706
"""Clocks per access of a warp to shared memory."""
UNSTAGED_LOAD_CLOCKS = 2.0
"""Of a warp to global memory, of inputs that pass no shared memory: what its cache gives, not fitted."""
ACCUMULATE_INSTRUCTIONS = 4.0
"""Instructions per packed sum that is accumulated in float32: two conversions, two additions."""
CHUNK_INSTRUCTIONS = 4.7
PROLOGUE_INSTRUCTIONS = 112.0
CHUNK_CLOCKS, DEEP_CHUNK_CLOCKS = 56.0, 33.0
"""Waiting for a chunk and its barrier, which the blocks of a multiprocessor share; with more than two stages."""
LONE_BLOCK, LONE_BLOCK_WARPS = 1.08, 8
"""How much longer a large block takes that has nobody to fill its waits at barriers."""
OVERLAP = 1.66
"""How issue, loads, fetch and latency combine: a norm between sum (1) and maximum (infinity)."""
L2_BYTES_PER_MICROSECOND = 4.7e6
DRAM_BYTES_PER_MICROSECOND = 4.0e6
MEMORY_OVERLAP = 2.64
LAUNCH_MICROSECONDS = 1.23
TABLE_BYTES_PER_MICROSECOND = 4.2e6
"""How fast a table of weights comes from DRAM: fitted, with the next, to eight layers of one to four rows."""
SPREAD_MICROSECONDS = 7e-5
"""Of an input, to put those of several rows side by side in shared memory: by the square of the rows, for the banks."""
TABLE_MICROSECONDS = 1.25
"""Until its first weights are there, and for the sums of the lanes at its end."""
CLUSTERS_AT_ONCE = {2: 66, 4: 30, 8: 15}
"""Of so many blocks, for each that a multiprocessor has room for: fewer than its multiprocessors have room for blocks,
because those of a cluster share one of the GPU's parts. So cuOccupancyMaxActiveClusters says of an H200."""
ONE_STREAM_PER_CLOCK = 0.25
"""How fast a stream of clusters comes that all multiprocessors follow."""


@dataclass(frozen=True)
class ClusterTerms:
    """What is fitted to kernels with clusters."""

    block_per_clock: float
    """Instructions of a stream that come in a network while one block of a multiprocessor waits for them."""
    streams_to_halve: float
    """How many different streams halve what comes to each multiprocessor."""
    most_different: float
    """Beyond so many, more are not slower."""
    exchange_clocks: float
    """Waiting for the input, and for the sums of a cluster's other blocks."""


OF_CONVOLUTIONS = ClusterTerms(0.065, 110, math.inf, 5000.0)
OF_LINEAR_LAYERS = ClusterTerms(0.07, 75, MULTIPROCESSORS, 500.0)
"""Fitted to 24 kernels on an H200, halfway between code from L2 and from DRAM."""


@dataclass(frozen=True)
class Stream:
    """What one thread runs of one K group, its zero weights left out."""

    multiply_adds: float
    loads: float
    copies: float
    """Instructions of all copies."""
    copy_code: float
    """Those that are there to run them: as many, or those of a loop in each chunk."""
    accumulations: float
    """Instructions that add up packed sums."""
    chunks: int
    stores: int
    preparing: float
    """Instructions that bring inputs within bounds, or multiply them by their gates."""

    @staticmethod
    def of(work: Work, density: float) -> Stream:
        """The stream of an average K group at a density (non-zeros / weights)."""
        of_chunk = density * work.terms / max(1, work.packed_sums * work.chunks)
        together = max(1, math.floor(PRODUCTS_TOGETHER / max(of_chunk, 1.0 / work.chunks)))
        added = work.packed_sums * math.ceil(work.chunks / together)
        return Stream(
            multiply_adds=work.terms * density,
            loads=_used(work.inputs, work, density) + _used(work.gate_loads, work, density),
            copies=work.copies * work.copy_instructions,
            copy_code=work.loop_instructions * work.chunks or work.copies * work.copy_instructions,
            # Where there was no weight for a sum, that stays as it is.
            accumulations=ACCUMULATE_INSTRUCTIONS * added * (1 - (1 - density) ** (work.terms / max(1, added))),
            chunks=work.chunks,
            stores=work.stores,
            preparing=_used(work.prepared, work, density),
        )

    @property
    def instructions(self) -> float:
        """To issue."""
        return self.code - self.copy_code + self.copies + PROLOGUE_INSTRUCTIONS

    @property
    def code(self) -> float:
        """Instructions to fetch."""
        work = self.multiply_adds + self.loads + self.preparing + self.copy_code + self.accumulations
        return work + self.chunks * CHUNK_INSTRUCTIONS + self.stores

    @property
    def code_bytes(self) -> float:
        return 16 * self.code


def _used(count: int, work: Work, density: float) -> float:
    """How many of so many, which all terms share evenly, some term needs."""
    return count * (1 - float((1 - density) ** (work.terms / max(1, count))))


def registers_of(work: Work) -> int:
    """About how many registers a thread needs."""
    return min(work.most_registers, registers_wanted(work.sums, work.pointers, work.held))


def _fetch_clocks(code: float) -> float:
    """For so many instructions, however many warps follow them."""
    near = min(code, NEAR_INSTRUCTIONS)
    cached = min(code, CACHED_INSTRUCTIONS) - near
    return near / NEAR_PER_CLOCK + cached / CACHED_PER_CLOCK + (code - near - cached) / DISTANT_PER_CLOCK


def _cold_fetch_clocks(code: float, per_clock: float) -> float:
    return max(_fetch_clocks(code), code / per_clock)


def predict_microseconds(layer: AnyTiled, batch: int, density: float, *, cold: bool = True) -> float:
    """The time of one launch on an H200, all parts at once: as in a network, or else with the code in the caches."""
    if layer.tiling.form == "table":
        return _table_microseconds(layer, batch, density)
    if layer.tiling.cluster > 1:
        return _stationary_microseconds(layer, batch, density, cold=cold)
    work, launch = layer.work, layer.launch
    stream = Stream.of(work, density)
    warps = math.ceil(work.threads / 32)
    registers = allocated(min(255, registers_of(work)))
    resident = min(
        BLOCKS, REGISTERS // (registers * warps * 32), WARPS // warps, SHARED_BYTES // (launch.shared_bytes + 1024)
    )
    resident = max(1, resident)
    x, y, groups = (size.at(batch) for size in launch.grid)  # also of more images than one launch takes
    blocks_per_group = x * y
    blocks = blocks_per_group * groups

    # More stages gain packed sums with those of float32 nothing, and take registers, which they are short of.
    deep = layer.tiling.stages > 2 and not work.packed_sums
    load_clocks = UNSTAGED_LOAD_CLOCKS if work.unstaged else LOAD_CLOCKS
    tile_bytes = 4 * work.threads * stream.loads if work.unstaged else work.tile_bytes

    def wave_clocks(blocks_here: int, fetch_clocks: Callable[[float], float] = _fetch_clocks) -> float:
        # Blocks of one multiprocessor stand a whole round of multiprocessors apart in the grid.
        streams = min(groups, blocks_here, math.ceil(blocks_here * MULTIPROCESSORS / blocks_per_group))
        issue = stream.instructions * warps * blocks_here / ISSUE_PER_CLOCK
        loads = stream.loads * work.conflicts * warps * blocks_here * load_clocks
        terms = (issue, loads, fetch_clocks(stream.code * streams), stream.instructions * WARP_CLOCKS)
        together = float(sum(term**OVERLAP for term in terms) ** (1 / OVERLAP))
        if blocks_here == 1 and warps >= LONE_BLOCK_WARPS:
            together *= LONE_BLOCK
        return together + stream.chunks * (DEEP_CHUNK_CLOCKS if deep else CHUNK_CLOCKS) / blocks_here

    full_waves = math.ceil(blocks / (MULTIPROCESSORS * resident)) - 1
    rest = blocks - full_waves * MULTIPROCESSORS * resident
    last = math.ceil(rest / MULTIPROCESSORS)
    first = resident if full_waves else last
    per_clock = COLD_PER_CLOCK
    if layer.spec.data_type == "float16":
        per_clock = min(per_clock, PACKED_COLD_PER_CLOCK * first)
    clocks = wave_clocks(first, partial(_cold_fetch_clocks, per_clock=per_clock) if cold else _fetch_clocks)
    if full_waves:
        clocks += wave_clocks(last)
    if full_waves > 1:
        clocks += (full_waves - 1) * wave_clocks(resident)
    moved = blocks * tile_bytes + batch * work.output_bytes
    l2 = moved / L2_BYTES_PER_MICROSECOND
    dram = batch * (work.input_bytes + work.output_bytes) / DRAM_BYTES_PER_MICROSECOND
    compute = clocks / CLOCKS_PER_MICROSECOND
    return (
        float(sum(term**MEMORY_OVERLAP for term in (compute, l2, dram)) ** (1 / MEMORY_OVERLAP)) + LAUNCH_MICROSECONDS
    )


def pool_microseconds(spec: Conv2d, batch: int) -> float:
    """The time of the max pool of a pooled layer where a kernel of its own reads and writes the maps."""
    elements = spec.kernels * (spec.map_height * spec.map_width + spec.output_height * spec.output_width)
    moved = batch * elements * ELEMENT_BYTES[spec.data_type]
    return moved / DRAM_BYTES_PER_MICROSECOND + LAUNCH_MICROSECONDS


def _table_microseconds(layer: AnyTiled, batch: int, density: float) -> float:
    """Of a kernel that reads its weights: once from DRAM, by blocks of further rows from L2."""
    x, _, groups = (size.at(batch) for size in layer.launch.grid)
    table = table_bytes(layer, density * layer.spec.weights_count)
    inputs = x * groups * layer.work.tile_bytes + batch * layer.work.output_bytes
    moved = table / TABLE_BYTES_PER_MICROSECOND + ((x - 1) * table + inputs) / L2_BYTES_PER_MICROSECOND
    images, here = layer.tiling.images, math.ceil(x * groups / MULTIPROCESSORS)
    spread = SPREAD_MICROSECONDS * layer.geometry.channels * images**2 * here if images > 1 else 0.0
    return moved + spread + TABLE_MICROSECONDS + LAUNCH_MICROSECONDS


def _stationary_microseconds(layer: AnyTiled, batch: int, density: float, *, cold: bool) -> float:
    """Of short streams that differ from block to block: in a network their code comes from DRAM."""
    work, launch = layer.work, layer.launch
    stream = Stream.of(work, density)
    warps = math.ceil(work.threads / 32)
    x, y, streams = (size.at(batch) for size in launch.grid)
    here = math.ceil(x * y * streams / MULTIPROCESSORS)
    # Other layers and batches are not measured with it.
    if batch == 1 and layer.spec.data_type == "float32" and not layer.geometry.is_linear:
        here = math.ceil(x * y * streams / layer.tiling.cluster / CLUSTERS_AT_ONCE[layer.tiling.cluster])
    registers = allocated(registers_of(work)) * warps * 32
    resident = max(1, min(BLOCKS, REGISTERS // registers, WARPS // warps, SHARED_BYTES // (launch.shared_bytes + 1024)))
    at_once = min(here, resident)
    terms_of = OF_LINEAR_LAYERS if layer.geometry.is_linear else OF_CONVOLUTIONS
    different = min(streams, terms_of.most_different, math.ceil(MULTIPROCESSORS * at_once / (x * y)))
    rate = ONE_STREAM_PER_CLOCK / (1 + different / terms_of.streams_to_halve)
    rate = min(terms_of.block_per_clock * at_once, rate) if cold else rate
    terms = (
        stream.instructions * warps * here / ISSUE_PER_CLOCK,
        stream.loads * work.conflicts * warps * here * LOAD_CLOCKS,
        stream.code * here / rate,
        stream.instructions * WARP_CLOCKS,
    )
    together = float(sum(term**OVERLAP for term in terms) ** (1 / OVERLAP))
    clocks = together + terms_of.exchange_clocks * math.ceil(here / resident)
    l2 = (x * y * streams * work.tile_bytes + batch * work.output_bytes) / L2_BYTES_PER_MICROSECOND
    return clocks / CLOCKS_PER_MICROSECOND + l2 + LAUNCH_MICROSECONDS
