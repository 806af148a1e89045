"""Occupancy: the blocks and clusters that a GPU runs at once."""

from __future__ import annotations

from codegen.kernels.register_budget import REGISTERS
from codegen.target.device_model import REFERENCE, DeviceModel

MOST_RESIDENT_SHARED_BYTES = 220_000
"""Most shared memory of a multiprocessor for all its resident blocks, in the fit on an H200."""
BLOCK_RESERVED_BYTES = 1024
"""Shared memory that the system takes for each block."""
CLUSTERS_AT_ONCE = {2: 66, 4: 30, 8: 15}
"""Clusters of this many blocks that run at once, for each block that a multiprocessor has room for: a cluster stays
within a GPC, so that some multiprocessors are left over. From cuOccupancyMaxActiveClusters on an H200."""


def clusters_at_once(device: DeviceModel, cluster: int) -> int:
    """Clusters of this size that run at once: an H200's, in proportion to the multiprocessors; one block is a cluster.

    Times the blocks that a multiprocessor has room for.
    """
    at_once = CLUSTERS_AT_ONCE.get(cluster, REFERENCE.multiprocessors // cluster)
    return max(1, at_once * device.multiprocessors // REFERENCE.multiprocessors)


def multiprocessors_for(device: DeviceModel, cluster: int) -> int:
    """Multiprocessors that clusters of this size can use."""
    return clusters_at_once(device, cluster) * cluster


def blocks_by_shared(device: DeviceModel, shared_bytes: int) -> int:
    """Blocks of `shared_bytes` each that the shared memory of a multiprocessor has room for."""
    available = min(MOST_RESIDENT_SHARED_BYTES, device.multiprocessor.shared_bytes)
    return available // (shared_bytes + BLOCK_RESERVED_BYTES)


def resident_blocks(device: DeviceModel, warps: int, registers: int, shared_bytes: int) -> int:
    """Blocks that a multiprocessor runs at once: `registers` per thread, `shared_bytes` per block; at least one."""
    most = device.multiprocessor
    by_registers = REGISTERS // (registers * warps * 32)
    return max(1, min(most.blocks, by_registers, most.warps // warps, blocks_by_shared(device, shared_bytes)))
