"""The time of kernels that read their weights from a table."""

from __future__ import annotations

import math

from codegen.kernels.table_conv2d import threads_of, tile_of
from codegen.kernels.table_linear import table_bytes
from codegen.selection.costs.launch import PlannedLaunch
from codegen.selection.costs.occupancy import blocks_by_shared, multiprocessors_for
from codegen.selection.costs.scaling import clocks_per_microsecond, dram_ratio, l2_ratio
from codegen.target.device_model import REFERENCE

TABLE_BYTES_PER_MICROSECOND, TABLE_BYTES_AGAIN = 3.8e6, 1.1e7
"""Bytes of a linear layer's table per microsecond from DRAM, and then from the L2 cache: fitted, with the next, to 368
times of four layers with one to sixteen rows."""
ROWS_MICROSECONDS = 4.7e-5
"""Microseconds of a block per input and row, to put the rows of an input side by side in shared memory."""
TABLE_MICROSECONDS = 2.48
"""Microseconds of a launch until its first weights are there, and for the sums of the lanes at its end."""
TILE_ACCESS_CLOCKS, TILE_COPY_CLOCKS, TILE_WAVE_MICROSECONDS = 1.9, 0.037, 1.1
"""Fitted to 135 convolution kernels of one image: clocks of a warp's access to shared memory, clocks of a byte of
the tile on its way there, and the wait for a wave of blocks, a launch or a cluster."""

PAIRED_ACCESS = 1.45
"""Clocks of an access to a word of two positions over those of a word of one, whose value needs no widening. Fitted to
26 times."""


def table_linear_microseconds(planned: PlannedLaunch) -> float:
    """The time of one launch of table_linear: the table comes once from DRAM, for blocks of further rows from L2."""
    layer, workload, device = planned.layer, planned.workload, planned.device
    x, _, groups = planned.grid
    table = table_bytes(layer, planned.density * layer.spec.weights_count)
    inputs = x * groups * workload.tile_bytes + planned.batch * workload.output_bytes
    from_dram = table / (TABLE_BYTES_PER_MICROSECOND * dram_ratio(device))
    from_l2 = ((x - 1) * table + inputs) / (TABLE_BYTES_AGAIN * l2_ratio(device))
    images, here = layer.tiling.images, math.ceil(x * groups / device.multiprocessors)
    copying = ROWS_MICROSECONDS * layer.geometry.channels * images * here
    slower = clocks_per_microsecond(REFERENCE) / clocks_per_microsecond(device)
    return from_dram + from_l2 + copying * slower + TABLE_MICROSECONDS


def table_conv2d_microseconds(planned: PlannedLaunch) -> float:
    """The time of one launch of table_conv2d: per weight, an access to shared memory a word of positions and a half."""
    layer, density, device = planned.layer, planned.density, planned.device
    tile, tiling = tile_of(layer), layer.tiling
    x, y, streams = planned.grid
    here = math.ceil(x * y * streams / multiprocessors_for(device, tiling.cluster))
    by_shared = blocks_by_shared(device, layer.launch.shared_bytes)
    resident = max(1, min(device.multiprocessor.warps * 32 // threads_of(layer), by_shared))
    weights = (
        density * layer.spec.weights_count / layer.geometry.output_channels / tiling.cluster * tiling.group_outputs
    )
    words = tiling.rows / tile.paired * (PAIRED_ACCESS if tile.paired > 1 else 1)
    accesses = weights * (words + 0.5) * max(tile.lanes / 32, 0.25 + tile.lanes / 32 / 2)
    clocks = TILE_ACCESS_CLOCKS * accesses + TILE_COPY_CLOCKS * planned.workload.tile_bytes
    waits = TILE_WAVE_MICROSECONDS * (math.ceil(here / resident) + 1 + (tiling.cluster > 1))
    return here * clocks / clocks_per_microsecond(device) + waits
