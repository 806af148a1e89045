"""Predicts how long a kernel runs, well enough to rank tilings.

The terms: instructions to issue, loads from shared memory, the instruction stream against three levels of instruction
caches, latency of a lone warp and of copies, L2 and DRAM traffic. In a network other layers run between two runs of
one: then the first blocks fetch all of their code, from the L2 cache where the network's graph has brought it ahead.
`coefficients.py` has the constants, tests/benchmarks/NOTES.md how well the first choice does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from codegen.ir.dtypes import ELEMENT_BYTES
from codegen.ir.layer_spec import AddResidual, Conv2d
from codegen.ir.tiling import Order
from codegen.kernels import AnyTiled
from codegen.kernels.geometry import geometry_of
from codegen.kernels.register_budget import REGISTERS, allocated, registers_wanted
from codegen.kernels.table_conv2d import threads_of, tile_of
from codegen.kernels.table_linear import table_bytes
from codegen.kernels.weight_stream import PRODUCTS_TOGETHER
from codegen.kernels.workload import Workload
from codegen.selection.coefficients import OF_CONVOLUTIONS, OF_FLOAT16, OF_FLOAT32, OF_LINEAR_LAYERS, Terms
from codegen.selection.partial_sectors import split_sectors

MULTIPROCESSORS = 132
GPC = 16.5
"""Multiprocessors that lie together, on average."""
CLOCKS_PER_MICROSECOND = 1755.0
WARPS = 64
BLOCKS = 32
SHARED_BYTES = 220_000

ISSUE_PER_CLOCK = 4.0
"""Warp instructions a multiprocessor issues."""
UNSTAGED_LOAD_CLOCKS = 2.0
"""Of a warp to global memory, of inputs that pass no shared memory: what its cache gives, not fitted."""
ACCUMULATE_INSTRUCTIONS = 4.0
"""Instructions per packed sum that is accumulated in float32: two conversions, two additions."""
CHUNK_INSTRUCTIONS = 4.7
PROLOGUE_INSTRUCTIONS = 112.0
TABLE_BYTES_PER_MICROSECOND, TABLE_BYTES_AGAIN = 4.2e6, 4.7e6
"""How fast a table of weights comes from DRAM, and then from the L2 cache: fitted, with the next, to eight layers of
one to four rows."""
SPREAD_MICROSECONDS = 7e-5
"""Of an input, to put those of several rows side by side in shared memory: by the square of the rows, for the banks."""
TABLE_MICROSECONDS = 2.48
"""Until its first weights are there, and for the sums of the lanes at its end, with the launch."""
POOL_BYTES_PER_MICROSECOND, POOL_MICROSECONDS = 4.0e6, 1.23
"""What a max pool of its own moves, and its launch."""
OVERLAPPING_HALVES_PER_MICROSECOND = 3.0e6
"""The same in bytes of 16-bit types where windows overlap: each value is in several of them."""
EXCHANGED_ALONE = 0.5
"""Of the time that a block's threads take for each other's sums, what no other block's work hides."""
TILE_ACCESS_CLOCKS, TILE_COPY_CLOCKS, TILE_WAVE_MICROSECONDS = 1.9, 0.037, 1.1
"""Of a convolution whose weights are a table, fitted to 135 kernels of one image: an access of a warp to shared memory,
a byte of the tile on its way there, and what a wave of blocks, a launch or a cluster waits for."""
CLUSTERS_AT_ONCE = {2: 66, 4: 30, 8: 15}
"""Of so many blocks, for each that a multiprocessor has room for: fewer than its multiprocessors have room for blocks,
because those of a cluster share one of the GPU's parts. So cuOccupancyMaxActiveClusters says of an H200."""


LONE_BLOCK_WARPS = 8
"""From how many on a block is large."""


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
    def of(work: Workload, density: float) -> Stream:
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

    @cached_property
    def code(self) -> float:
        """Instructions to fetch."""
        work = self.multiply_adds + self.loads + self.preparing + self.copy_code + self.accumulations
        return work + self.chunks * CHUNK_INSTRUCTIONS + self.stores

    @property
    def code_bytes(self) -> float:
        return 16 * self.code


def _used(count: int, work: Workload, density: float) -> float:
    """How many of so many, which all terms share evenly, some term needs."""
    return count * (1 - float((1 - density) ** (work.terms / count))) if count else 0.0


def _norm(terms: Iterable[float], overlap: float) -> float:
    """Between sum (1) and maximum (infinity). Not by `sum`, which adds floats up differently from Python 3.12 on."""
    total = 0.0
    for term in terms:
        total += term**overlap
    return float(total ** (1 / overlap))


def registers_of(work: Workload) -> int:
    """About how many registers a thread needs."""
    return min(work.most_registers, registers_wanted(work.sums, work.pointers, work.held))


def _fetch_clocks(code: float, of: Terms, *, apart: bool) -> float:
    """For so many instructions, however many warps follow them."""
    near = min(code, of.near_instructions)
    cached = min(code, of.cached_instructions) - near
    distant = of.apart_per_clock if apart else of.distant_per_clock
    return near / of.near_per_clock + cached / of.cached_per_clock + (code - near - cached) / distant


def predict_microseconds(
    layer: AnyTiled,
    batch: int,
    density: float,
    *,
    cold: bool = True,
    fetched: bool = True,
    order: Order | None = None,
    stream: Stream | None = None,
) -> float:
    """The time of one launch on an H200, all parts at once: as in a network, or else with the code in the caches.

    In a network its code comes from the L2 cache, or, unless it was `fetched` ahead, from DRAM. `order`: of blocks, if
    not the tiling's; `stream`: of the layer at this density, from whoever has it.
    """
    kernel, cluster = layer.tiling.kernel, layer.tiling.cluster
    if kernel == "table_conv2d":
        return _tile_table_microseconds(layer, batch, density)
    if kernel == "table_linear":
        return _table_microseconds(layer, batch, density)
    if kernel == "cluster_conv2d" or (kernel == "linear" and cluster > 1):
        return _stationary_microseconds(layer, batch, density, cold=cold, fetched=fetched)
    work, launch = layer.workload, layer.launch
    multiprocessors = CLUSTERS_AT_ONCE.get(cluster, MULTIPROCESSORS) * cluster
    stream = stream or Stream.of(work, density)
    warps = math.ceil(work.threads / 32)
    registers = min(allocated(registers_of(work)), work.most_registers // 8 * 8)
    resident = min(
        BLOCKS, REGISTERS // (registers * warps * 32), WARPS // warps, SHARED_BYTES // (launch.shared_bytes + 1024)
    )
    resident = max(1, resident)
    x, y, groups = (size.at(batch) for size in launch.grid)  # also of more images than one launch takes
    blocks_per_group = x * y
    blocks = blocks_per_group * groups

    # What passes registers is on its way for one chunk, however many stages there are.
    through_registers = layer.spec.data_type != "float32" and not layer.pairing.whole_words
    # More stages gain packed sums with those of float32 nothing, and take registers, which they are short of.
    deep = layer.tiling.stages > 2 and not work.packed_sums and not through_registers
    of = OF_FLOAT16 if layer.spec.data_type == "float16" else OF_FLOAT32
    load_clocks = UNSTAGED_LOAD_CLOCKS if work.unstaged else of.load_clocks
    tile_bytes = 4 * work.threads * stream.loads if work.unstaged else work.tile_bytes

    by_place = (order or layer.tiling.order) == "place"
    ahead = 1 if through_registers else max(1, layer.tiling.stages - 1)
    chunk_copy_clocks = 0.0 if work.unstaged else tile_bytes / stream.chunks / of.copied_per_clock
    instructions = stream.instructions * warps
    accesses = (stream.loads * work.conflicts + work.exchanged) * warps
    waits = stream.chunks * (of.deep_chunk_clocks if deep else of.chunk_clocks)
    waits += EXCHANGED_ALONE * work.exchanged * warps * load_clocks

    def wave_clocks(blocks_here: int, cold_clocks: Callable[[float], float] | None = None) -> float:
        # Blocks of one multiprocessor stand a whole round of multiprocessors apart in the grid.
        followed = 1 if by_place else blocks_per_group
        streams = min(groups, blocks_here, math.ceil(blocks_here * multiprocessors / followed))
        issue = instructions * blocks_here / ISSUE_PER_CLOCK
        loads = accesses * blocks_here * load_clocks
        # Streams of several blocks wait for their code at the same time.
        fetch = _fetch_clocks(stream.code * streams, of, apart=by_place) / math.sqrt(streams)
        if cold_clocks is not None:
            fetch = max(fetch, cold_clocks(stream.code * streams))
        copy_clocks = (of.copy_clocks + chunk_copy_clocks * blocks_here) if not work.unstaged else 0.0
        copies = stream.chunks * copy_clocks / ahead
        together = _norm((issue, loads, fetch, stream.instructions * of.warp_clocks, copies), of.overlap)
        if blocks_here == 1 and warps >= LONE_BLOCK_WARPS:
            together *= of.lone_block
        return together + waits

    full_waves = math.ceil(blocks / (multiprocessors * resident)) - 1
    rest = blocks - full_waves * multiprocessors * resident
    last = math.ceil(rest / multiprocessors)
    first = resident if full_waves else last
    # Of different streams of one part of the GPU: those beside each other follow one, or one each.
    different = min(groups, GPC * first if by_place else max(cluster, GPC * first / blocks_per_group))
    clocks = wave_clocks(first, _cold_clocks(layer, of, different, fetched=fetched) if cold else None)
    clocks += of.block_clocks * math.ceil(blocks / multiprocessors) + chunk_copy_clocks * first
    if full_waves:
        clocks += wave_clocks(last)
    if full_waves > 1:
        clocks += (full_waves - 1) * wave_clocks(resident)
    if cluster > 1:
        exchanged = 4 * work.sums * work.threads * math.ceil(blocks / multiprocessors)
        clocks += of.exchange_clocks * (full_waves + 1) + exchanged / of.exchanged_per_clock
    l2 = (blocks * tile_bytes + batch * work.output_bytes) / of.l2_bytes_per_microsecond
    share = stream.loads / work.inputs if work.unstaged else 1.0
    again = 0 if by_place or layer.geometry.groups > 1 else groups / cluster - 1
    dram = _memory_bytes(layer, batch, share * again, of) / of.dram_bytes_per_microsecond
    if layer.geometry.groups > 1 and not by_place:
        dram *= of.scattered
    if (outputs := batch * work.output_bytes) > of.held_bytes:
        dram += batch * split_sectors(layer) * (1 - of.held_bytes / outputs) / of.split_per_microsecond
    return _norm((clocks / CLOCKS_PER_MICROSECOND, l2, dram), of.memory_overlap) + of.launch_microseconds


def _cold_clocks(layer: AnyTiled, of: Terms, different: float, *, fetched: bool) -> Callable[[float], float]:
    """For so many instructions of a multiprocessor's first blocks, of which its caches have none."""
    if not fetched or layer.geometry.is_linear:
        return lambda code: code / of.cold_per_clock

    prefetched_per_clock = of.prefetched_per_clock / (1 + (different - 1) / of.streams_to_halve)

    def clocks(code: float) -> float:
        ahead = min(code, of.prefetched_instructions)
        return ahead / max(prefetched_per_clock, of.fetched_per_clock) + (code - ahead) / of.fetched_per_clock

    return clocks


def pool_microseconds(spec: Conv2d, batch: int) -> float:
    """The time of the max pool of a pooled layer where a kernel of its own reads and writes the maps."""
    elements = spec.output_channels * (spec.map_height * spec.map_width + spec.output_height * spec.output_width)
    moved = batch * elements * ELEMENT_BYTES[spec.data_type]
    slow = spec.data_type != "float32" and geometry_of(spec).overlap
    return moved / (OVERLAPPING_HALVES_PER_MICROSECOND if slow else POOL_BYTES_PER_MICROSECOND) + POOL_MICROSECONDS


def _table_microseconds(layer: AnyTiled, batch: int, density: float) -> float:
    """Of a kernel that reads its weights: once from DRAM, by blocks of further rows from L2."""
    x, _, groups = (size.at(batch) for size in layer.launch.grid)
    table = table_bytes(layer, density * layer.spec.weights_count)
    inputs = x * groups * layer.workload.tile_bytes + batch * layer.workload.output_bytes
    moved = table / TABLE_BYTES_PER_MICROSECOND + ((x - 1) * table + inputs) / TABLE_BYTES_AGAIN
    images, here = layer.tiling.images, math.ceil(x * groups / MULTIPROCESSORS)
    spread = SPREAD_MICROSECONDS * layer.geometry.channels * images**2 * here if images > 1 else 0.0
    return moved + spread + TABLE_MICROSECONDS


def _memory_bytes(layer: AnyTiled, batch: int, again: float, of: Terms) -> float:
    """What comes from DRAM and goes there: the input so many times again, where no cache holds it."""
    work = layer.workload
    inputs, outputs = batch * work.input_bytes, batch * work.output_bytes
    more = max(0.0, inputs - of.held_bytes) * of.read_again * again
    added = sum(isinstance(each, AddResidual) for each in layer.spec.epilogue) * outputs
    return float(inputs + more + outputs + added)


def _tile_table_microseconds(layer: AnyTiled, batch: int, density: float) -> float:
    """Of a convolution's: a weight is an access to shared memory for each position of a thread, and half of one."""
    tile, tiling, launch = tile_of(layer), layer.tiling, layer.launch
    x, y, streams = (size.at(batch) for size in launch.grid)
    here = math.ceil(x * y * streams / (CLUSTERS_AT_ONCE.get(tiling.cluster, MULTIPROCESSORS) * tiling.cluster))
    resident = max(1, min(WARPS * 32 // threads_of(layer), SHARED_BYTES // (launch.shared_bytes + 1024)))
    weights = (
        density * layer.spec.weights_count / layer.geometry.output_channels / tiling.cluster * tiling.group_outputs
    )
    accesses = weights * (tiling.rows + 0.5) * max(tile.lanes / 32, 0.25 + tile.lanes / 32 / 2)
    clocks = TILE_ACCESS_CLOCKS * accesses + TILE_COPY_CLOCKS * layer.workload.tile_bytes
    waits = TILE_WAVE_MICROSECONDS * (math.ceil(here / resident) + 1 + (tiling.cluster > 1))
    return here * clocks / CLOCKS_PER_MICROSECOND + waits


def _stationary_microseconds(layer: AnyTiled, batch: int, density: float, *, cold: bool, fetched: bool) -> float:
    """Of short streams that differ from block to block."""
    work, launch = layer.workload, layer.launch
    stream = Stream.of(work, density)
    warps = math.ceil(work.threads / 32)
    x, y, streams = (size.at(batch) for size in launch.grid)
    here = math.ceil(x * y * streams / MULTIPROCESSORS)
    # Other layers and batches are not measured with it.
    if batch == 1 and layer.spec.data_type == "float32" and not layer.geometry.is_linear:
        here = math.ceil(x * y * streams / layer.tiling.cluster / CLUSTERS_AT_ONCE[layer.tiling.cluster])
    registers = allocated(registers_of(work)) * warps * 32
    resident = max(1, min(BLOCKS, REGISTERS // registers, WARPS // warps, SHARED_BYTES // (launch.shared_bytes + 1024)))
    rounds = math.ceil(here / resident)
    of = OF_LINEAR_LAYERS if layer.geometry.is_linear else OF_CONVOLUTIONS
    # Of float16 those are linear layers, whose copies pass registers.
    packed = layer.spec.data_type == "float16"
    warp_clocks = OF_FLOAT16.warp_clocks if packed else of.warp_clocks
    ahead = 1 if packed else max(1, layer.tiling.stages - 1)
    fetch = stream.code * here / of.most_per_clock
    if cold:
        # While some of its blocks wait for their code, the others' comes too.
        fetch = max(fetch, stream.code * rounds / (of.fetched_per_clock if fetched else of.block_per_clock))
    terms = (
        stream.instructions * warps * here / ISSUE_PER_CLOCK,
        stream.loads * work.conflicts * warps * here * of.load_clocks,
        fetch,
        stream.instructions * warp_clocks,
        stream.chunks * rounds * of.copy_clocks / ahead,
    )
    together = _norm(terms, of.overlap)
    clocks = together + of.once_clocks + (of.exchange_clocks + stream.chunks * of.chunk_clocks) * rounds
    l2 = (x * y * streams * work.tile_bytes + batch * work.output_bytes) / of.l2_bytes_per_microsecond
    return clocks / CLOCKS_PER_MICROSECOND + l2 + OF_FLOAT32.launch_microseconds
