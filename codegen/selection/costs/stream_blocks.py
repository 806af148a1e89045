"""The time of kernels whose blocks follow long instruction streams: conv2d, linear without clusters, direct_global.

Blocks run in waves. A wave takes about as long as the slowest of these: issuing instructions, loads of inputs, fetching
code from three levels of instruction caches, the latency of a lone warp, the latency of copies. Barriers come on top.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from codegen.ir.layer_spec import AddResidual
from codegen.kernels import AnyTiled
from codegen.kernels.register_budget import allocated
from codegen.selection import coefficients
from codegen.selection.coefficients import StreamCoefficients
from codegen.selection.costs.launch import PlannedLaunch
from codegen.selection.costs.occupancy import multiprocessors_for, resident_blocks
from codegen.selection.costs.scaling import ISSUE_PER_CLOCK, clocks_per_microsecond, scaled_stream
from codegen.selection.costs.stream import norm, registers_of
from codegen.selection.partial_sectors import split_sectors

DIRECT_LOAD_CLOCKS = 2.0
"""Clocks of a warp's load from global memory, from what its cache gives: not fitted."""
EXCHANGED_ALONE = 0.5
"""Share of the time of a block's exchange of sums that no other block's work hides."""
LONE_BLOCK_WARPS = 8
"""Warps from which on a block counts as large."""

LARGE_BY_PLACE = 1.2
"""Slowdown of large blocks of a linear layer whose neighbours follow different streams: measured in five layers."""

ColdClocks = Callable[[float], float]
"""Clocks until some instructions have come to a multiprocessor whose caches have none of them."""


@dataclass(frozen=True)
class InputPath:
    """Path of a block's inputs to its threads."""

    tile_bytes: float
    """Bytes that a block reads from global memory."""
    read_share: float
    """Share of a channel group's input that is read at all."""
    load_clocks: float
    """Clocks of a warp's load of an input."""
    barrier_clocks: float
    """Clocks of a chunk's barriers."""
    copy_clocks: float
    """Clocks until the first bytes of a chunk are there."""
    chunk_copy_clocks: float
    """Clocks of the other bytes of a chunk of one block."""
    ahead: int
    """Chunks under way at once."""


def conv2d_microseconds(planned: PlannedLaunch) -> float:
    """The time of one launch of conv2d."""
    return stream_microseconds(planned)


def direct_global_microseconds(planned: PlannedLaunch) -> float:
    """The time of one launch of direct_global."""
    of, workload, stream = _coefficients(planned), planned.workload, planned.stream
    path = InputPath(
        tile_bytes=4 * workload.threads * stream.loads,
        read_share=stream.loads / workload.inputs,
        load_clocks=DIRECT_LOAD_CLOCKS,
        barrier_clocks=of.chunk_clocks,
        copy_clocks=0.0,
        chunk_copy_clocks=0.0,
        ahead=1,
    )
    return stream_microseconds(planned, path)


def _coefficients(planned: PlannedLaunch) -> StreamCoefficients:
    half = planned.layer.spec.data_type == "float16"
    return scaled_stream(coefficients.OF_FLOAT16 if half else coefficients.OF_FLOAT32, planned.device)


def _through_shared_memory(planned: PlannedLaunch, of: StreamCoefficients) -> InputPath:
    layer, workload = planned.layer, planned.workload
    stages = layer.tiling.stages
    # Copies through registers are under way for one chunk only, however many stages there are.
    asynchronous = planned.device.multiprocessor.async_copies
    through_registers = not asynchronous or (layer.spec.data_type != "float32" and not layer.pairing.whole_words)
    # More stages gain nothing for packed sums with those of float32, and take registers, which these are short of.
    deep = stages > 2 and not workload.packed_sums and not through_registers
    return InputPath(
        tile_bytes=workload.tile_bytes,
        read_share=1.0,
        load_clocks=of.load_clocks,
        barrier_clocks=of.deep_chunk_clocks if deep else of.chunk_clocks,
        copy_clocks=of.copy_clocks,
        chunk_copy_clocks=workload.tile_bytes / planned.stream.chunks / of.copied_per_clock,
        ahead=1 if through_registers else max(1, stages - 1),
    )


@dataclass(frozen=True)
class _Waves:
    """Waves of blocks on one multiprocessor."""

    planned: PlannedLaunch
    of: StreamCoefficients
    path: InputPath
    multiprocessors: int

    def clocks(self, blocks: int, cold_clocks: ColdClocks | None = None) -> float:
        """Clocks of a wave of `blocks` on a multiprocessor; `cold_clocks` if it is the first of a cold launch."""
        planned, of, path = self.planned, self.of, self.path
        stream, workload, warps = planned.stream, planned.workload, planned.warps
        x, y, groups = planned.grid
        # Blocks of one multiprocessor stand a whole round of multiprocessors apart in the grid.
        followed = 1 if planned.by_place else x * y
        different = min(groups, blocks, math.ceil(blocks * self.multiprocessors / followed))
        streams = planned.layer.tiling.block_groups * different
        issue = planned.issue_slots * warps * blocks / ISSUE_PER_CLOCK
        loads = (stream.loads * workload.conflicts + workload.exchanged) * warps * blocks * path.load_clocks
        # Streams of several blocks wait for their code at the same time.
        fetch = _fetch_clocks(stream.code * streams, of, apart=planned.by_place) / math.sqrt(streams)
        if cold_clocks is not None:
            # Warps of a block that follow different streams wait for their code at the same time too.
            fetch = max(fetch, cold_clocks(stream.code * streams) / math.sqrt(planned.layer.tiling.block_groups))
        copies = stream.chunks * (path.copy_clocks + path.chunk_copy_clocks * blocks) / path.ahead
        together = norm((issue, loads, fetch, planned.issue_slots * of.warp_clocks, copies), of.overlap)
        if blocks == 1 and warps >= LONE_BLOCK_WARPS:
            together *= of.lone_block
        barriers = stream.chunks * path.barrier_clocks
        return together + (barriers + EXCHANGED_ALONE * workload.exchanged * warps * path.load_clocks)


def stream_microseconds(planned: PlannedLaunch, path: InputPath | None = None) -> float:
    """The time of one launch, all parts of the layer at once; `path` of its inputs if not through shared memory."""
    layer, workload, of = planned.layer, planned.workload, _coefficients(planned)
    path = path or _through_shared_memory(planned, of)
    cluster = layer.tiling.cluster
    multiprocessors = multiprocessors_for(planned.device, cluster)
    registers = min(allocated(registers_of(workload)), workload.most_registers // 8 * 8)
    resident = resident_blocks(planned.device, planned.warps, registers, layer.launch.shared_bytes)
    x, y, groups = planned.grid
    blocks_per_group = x * y
    blocks = blocks_per_group * groups

    full_waves = math.ceil(blocks / (multiprocessors * resident)) - 1
    last = math.ceil((blocks - full_waves * multiprocessors * resident) / multiprocessors)
    first = resident if full_waves else last
    waves = _Waves(planned, of, path, multiprocessors)
    clocks = waves.clocks(first, _cold_clocks(planned, of, first) if planned.cold else None)
    clocks += of.block_clocks * math.ceil(blocks / multiprocessors) + path.chunk_copy_clocks * first
    if full_waves:
        clocks += waves.clocks(last)
    if full_waves > 1:
        clocks += (full_waves - 1) * waves.clocks(resident)
    if cluster > 1:
        exchanged = 4 * workload.sums * workload.threads * math.ceil(blocks / multiprocessors)
        clocks += of.exchange_clocks * (full_waves + 1) + exchanged / of.exchanged_per_clock
    l2 = (blocks * path.tile_bytes + planned.batch * workload.output_bytes) / of.l2_bytes_per_microsecond
    terms = (clocks / clocks_per_microsecond(planned.device), l2, _dram_microseconds(planned, path, of))
    slowdown = LARGE_BY_PLACE if layer.tiling.is_large and planned.by_place else 1.0
    return slowdown * norm(terms, of.memory_overlap) + of.launch_microseconds


def _fetch_clocks(code: float, of: StreamCoefficients, *, apart: bool) -> float:
    """Clocks to fetch some instructions, however many warps follow them; `apart`: neighbours follow other streams."""
    near = min(code, of.near_instructions)
    cached = min(code, of.cached_instructions) - near
    distant = of.apart_per_clock if apart else of.distant_per_clock
    return near / of.near_per_clock + cached / of.cached_per_clock + (code - near - cached) / distant


def _cold_clocks(planned: PlannedLaunch, of: StreamCoefficients, first: int) -> ColdClocks:
    """Clocks to fetch the code of a first wave of `first` blocks a multiprocessor."""
    if not planned.fetched:
        return lambda code: code / of.cold_per_clock
    if planned.layer.geometry.is_linear:
        return lambda code: code / of.fetched_per_clock
    x, y, groups = planned.grid
    # Different streams in one GPC: multiprocessors beside each other follow one, or one each.
    beside = planned.device.multiprocessor.per_gpc * first
    different = min(groups, beside if planned.by_place else max(planned.layer.tiling.cluster, beside / (x * y)))
    prefetched_per_clock = of.prefetched_per_clock / (1 + (different - 1) / of.streams_to_halve)

    def clocks(code: float) -> float:
        ahead = min(code, of.prefetched_instructions)
        return ahead / max(prefetched_per_clock, of.fetched_per_clock) + (code - ahead) / of.fetched_per_clock

    return clocks


def _dram_microseconds(planned: PlannedLaunch, path: InputPath, of: StreamCoefficients) -> float:
    layer, batch = planned.layer, planned.batch
    grouped = layer.geometry.groups > 1
    _, _, groups = planned.grid
    again = 0 if planned.by_place or grouped else groups / layer.tiling.cluster - 1
    dram = _memory_bytes(layer, batch, path.read_share * again, of) / of.dram_bytes_per_microsecond
    if grouped and not planned.by_place:
        dram *= of.scattered
    if (outputs := batch * planned.workload.output_bytes) > of.held_bytes:
        dram += batch * split_sectors(layer) * (1 - of.held_bytes / outputs) / of.split_per_microsecond
    return dram


def _memory_bytes(layer: AnyTiled, batch: int, again: float, of: StreamCoefficients) -> float:
    """Bytes from and to DRAM: the part of the input that no cache holds is read `again` times more."""
    inputs, outputs = batch * layer.workload.input_bytes, batch * layer.workload.output_bytes
    more = max(0.0, inputs - of.held_bytes) * of.read_again * again
    added = sum(isinstance(each, AddResidual) for each in layer.spec.epilogue) * outputs
    return float(inputs + more + outputs + added)
