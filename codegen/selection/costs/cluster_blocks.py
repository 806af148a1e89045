"""The time of kernels whose channels are divided over clusters, in short streams that differ from block to block."""

from __future__ import annotations

import math

from codegen.kernels.register_budget import allocated
from codegen.kernels.workload import SHARED_BYTES
from codegen.selection import coefficients
from codegen.selection.coefficients import ClusterCoefficients
from codegen.selection.costs.launch import PlannedLaunch
from codegen.selection.costs.occupancy import clusters_at_once, resident_blocks
from codegen.selection.costs.scaling import ISSUE_PER_CLOCK, clocks_per_microsecond, scaled_cluster
from codegen.selection.costs.stream import norm, registers_of
from codegen.selection.costs.stream_blocks import stream_microseconds

FEW_ROWS = 64
"""Most rows of a linear layer that the coefficients of its clusters are fitted to."""


def cluster_conv2d_microseconds(planned: PlannedLaunch) -> float:
    """The time of one launch of cluster_conv2d."""
    x, y, streams = planned.grid
    cluster = planned.layer.tiling.cluster
    here = math.ceil(x * y * streams / cluster / clusters_at_once(planned.device, cluster))
    of = scaled_cluster(coefficients.OF_CONVOLUTIONS, planned.device)
    return _microseconds(planned, of, here, of.warp_clocks, max(1, planned.layer.tiling.stages - 1))


def linear_microseconds(planned: PlannedLaunch) -> float:
    """The time of one launch of linear, with clusters or without."""
    layer = planned.layer
    if layer.tiling.cluster == 1 or planned.batch > FEW_ROWS:
        return stream_microseconds(planned)
    x, y, streams = planned.grid
    here = math.ceil(x * y * streams / planned.device.multiprocessors)
    of = scaled_cluster(coefficients.OF_LINEAR_LAYERS, planned.device)
    if layer.spec.data_type == "float16":  # whose copies pass registers, one chunk at a time
        return _microseconds(planned, of, here, coefficients.OF_FLOAT16.warp_clocks, 1)
    return _microseconds(planned, of, here, of.warp_clocks, max(1, layer.tiling.stages - 1))


def _microseconds(planned: PlannedLaunch, of: ClusterCoefficients, here: int, warp_clocks: float, ahead: int) -> float:
    """The time of `here` blocks on each multiprocessor, with `ahead` chunks of a block under way at once."""
    workload, stream, warps = planned.workload, planned.stream, planned.warps
    x, y, streams = planned.grid
    registers, shared_bytes = allocated(registers_of(workload)), planned.layer.launch.shared_bytes
    resident = resident_blocks(planned.device, warps, registers, shared_bytes)
    rounds = math.ceil(here / resident)
    fetch = stream.code * here / of.most_per_clock
    if planned.cold:
        # While some of its blocks wait for their code, the others' comes too.
        fetch = max(fetch, stream.code * rounds / (of.fetched_per_clock if planned.fetched else of.block_per_clock))
    terms = (
        planned.issue_slots * warps * here / ISSUE_PER_CLOCK,
        stream.loads * workload.conflicts * warps * here * of.load_clocks,
        fetch,
        planned.issue_slots * warp_clocks,
        stream.chunks * rounds * of.copy_clocks / ahead,
    )
    clocks = norm(terms, of.overlap) + of.once_clocks + (of.exchange_clocks + stream.chunks * of.chunk_clocks) * rounds
    clocks += max(0, 4 * workload.sums * workload.threads - SHARED_BYTES) * here / of.exchanged_per_clock
    l2 = (x * y * streams * workload.tile_bytes + planned.batch * workload.output_bytes) / of.l2_bytes_per_microsecond
    return clocks / clocks_per_microsecond(planned.device) + l2 + coefficients.OF_FLOAT32.launch_microseconds
