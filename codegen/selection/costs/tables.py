"""The time of kernels that read their weights from a table."""

from __future__ import annotations

import math

from codegen.kernels.table_conv2d import threads_of, tile_of
from codegen.kernels.table_linear import table_bytes
from codegen.selection.costs.h200 import (
    BLOCK_RESERVED_BYTES,
    CLOCKS_PER_MICROSECOND,
    MOST_WARPS,
    MULTIPROCESSORS,
    RESIDENT_SHARED_BYTES,
    multiprocessors_for,
)
from codegen.selection.costs.launch import PlannedLaunch

TABLE_BYTES_PER_MICROSECOND, TABLE_BYTES_AGAIN = 4.2e6, 4.7e6
"""Bytes of a linear layer's table per microsecond from DRAM, and then from the L2 cache: fitted, with the next two, to
eight layers of one to four rows."""
SPREAD_MICROSECONDS = 7e-5
"""Microseconds per input to put those of several rows side by side in shared memory: times the square of the rows, for
the banks."""
TABLE_MICROSECONDS = 2.48
"""Microseconds of a launch until its first weights are there, and for the sums of the lanes at its end."""
TILE_ACCESS_CLOCKS, TILE_COPY_CLOCKS, TILE_WAVE_MICROSECONDS = 1.9, 0.037, 1.1
"""Fitted to 135 convolution kernels of one image: clocks of a warp's access to shared memory, clocks of a byte of
the tile on its way there, and the wait for a wave of blocks, a launch or a cluster."""


def table_linear_microseconds(planned: PlannedLaunch) -> float:
    """The time of one launch of table_linear: the table comes once from DRAM, for blocks of further rows from L2."""
    layer, workload = planned.layer, planned.workload
    x, _, groups = planned.grid
    table = table_bytes(layer, planned.density * layer.spec.weights_count)
    inputs = x * groups * workload.tile_bytes + planned.batch * workload.output_bytes
    moved = table / TABLE_BYTES_PER_MICROSECOND + ((x - 1) * table + inputs) / TABLE_BYTES_AGAIN
    images, here = layer.tiling.images, math.ceil(x * groups / MULTIPROCESSORS)
    spread = SPREAD_MICROSECONDS * layer.geometry.channels * images**2 * here if images > 1 else 0.0
    return moved + spread + TABLE_MICROSECONDS


def table_conv2d_microseconds(planned: PlannedLaunch) -> float:
    """The time of one launch of table_conv2d: per weight one access to shared memory a position, and half of one."""
    layer, density = planned.layer, planned.density
    tile, tiling = tile_of(layer), layer.tiling
    x, y, streams = planned.grid
    here = math.ceil(x * y * streams / multiprocessors_for(tiling.cluster))
    by_shared = RESIDENT_SHARED_BYTES // (layer.launch.shared_bytes + BLOCK_RESERVED_BYTES)
    resident = max(1, min(MOST_WARPS * 32 // threads_of(layer), by_shared))
    weights = (
        density * layer.spec.weights_count / layer.geometry.output_channels / tiling.cluster * tiling.group_outputs
    )
    accesses = weights * (tiling.rows + 0.5) * max(tile.lanes / 32, 0.25 + tile.lanes / 32 / 2)
    clocks = TILE_ACCESS_CLOCKS * accesses + TILE_COPY_CLOCKS * planned.workload.tile_bytes
    waits = TILE_WAVE_MICROSECONDS * (math.ceil(here / resident) + 1 + (tiling.cluster > 1))
    return here * clocks / CLOCKS_PER_MICROSECOND + waits
