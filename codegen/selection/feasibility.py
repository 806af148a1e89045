"""Feasibility: whether a tiling divides its layer evenly, and its blocks fit a multiprocessor and the compiler."""

from __future__ import annotations

from codegen.ir.layer_spec import Conv2d
from codegen.kernels import AnyTiled
from codegen.kernels.candidate_blocks import LARGE_BLOCK_THREADS
from codegen.kernels.max_pool import has_whole_windows
from codegen.kernels.register_budget import REGISTERS
from codegen.kernels.streams import fits
from codegen.kernels.workload import BLOCK_SHARED_BYTES, CLUSTER_SHARED_BYTES, SHARED_BYTES
from codegen.selection.costs.stream import registers_of
from codegen.target.device_model import REFERENCE, DeviceModel

OFFSET_BYTES = 2**31
"""Largest offset of an address in PTX."""
REGISTERS_OVER = 8
"""Estimated registers over the limit that a measured kernel may have: sums may lie apart from ptxas's registers."""
SUMS = 128
"""Most registers of a thread that hold sums."""
BODY_SLOTS = 7_000
"""Most multiply-adds of one turn of the loop."""
BODY_RESULTS = 1_600
"""Most results of the statements of that turn: nvcc takes about 3 s for these two limits."""


def comes_out_even(layer: AnyTiled) -> bool:
    """Whether the tiling divides the layer evenly. Call this before any other query."""
    tiling = layer.tiling
    if tiling.reads_table:  # its threads have a sum for each of their rows, its units any of the channels
        return tiling.group_outputs % tiling.cluster == 0
    return tiling.rows * layer.sums <= SUMS and fits(layer.geometry, tiling) and has_whole_windows(layer)


def block_fits(layer: AnyTiled, device: DeviceModel = REFERENCE, *, measured: bool = False) -> bool:
    """Whether threads, registers, shared memory of a GPU and the size of the loop body are within their limits.

    A measured tiling may have more shared memory than one that is chosen by prediction, and more registers by this
    estimate.
    """
    if layer.tiling.splits_streams and layer.tiling.stages < 2:
        return False
    work = layer.workload
    return (
        work.threads <= 1024
        and work.sums <= SUMS
        and registers_of(work) <= min(200, REGISTERS // (-(-work.threads // 32) * 32)) + measured * REGISTERS_OVER
        and work.slots <= BODY_SLOTS
        and work.results <= BODY_RESULTS
        and work.largest_offset_bytes < OFFSET_BYTES
        and layer.launch.shared_bytes <= min(_shared_limit(layer, measured), device.multiprocessor.block_shared_bytes)
    )


def _shared_limit(layer: AnyTiled, measured: bool) -> int:
    tiling = layer.tiling
    large = tiling.cluster > 1 and isinstance(layer.spec, Conv2d) and layer.threads >= LARGE_BLOCK_THREADS
    large = tiling.is_large or (large and layer.spec.data_type == "float32")
    if measured or large or tiling.kernel == "table_conv2d":
        return BLOCK_SHARED_BYTES
    return CLUSTER_SHARED_BYTES if tiling.cluster > 1 and layer.spec.data_type == "float16" else SHARED_BYTES
