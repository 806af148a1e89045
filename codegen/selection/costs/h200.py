"""The GPU that predictions are made for: an H200."""

from __future__ import annotations

from codegen.kernels.register_budget import REGISTERS

MULTIPROCESSORS = 132
GPC_MULTIPROCESSORS = 16.5
"""Multiprocessors of a GPC, on average: they share a path to the L2 cache."""
CLOCKS_PER_MICROSECOND = 1755.0
ISSUE_PER_CLOCK = 4.0
"""Warp instructions that a multiprocessor issues."""
MOST_WARPS = 64
"""Resident warps of a multiprocessor."""
MOST_BLOCKS = 32
"""Resident blocks of a multiprocessor."""
RESIDENT_SHARED_BYTES = 220_000
"""Shared memory of a multiprocessor for all its resident blocks."""
BLOCK_RESERVED_BYTES = 1024
"""Shared memory that the system takes for each block."""
CLUSTERS_AT_ONCE = {2: 66, 4: 30, 8: 15}
"""Clusters of this many blocks that run at once, for each block that a multiprocessor has room for: a cluster stays
within a GPC, so that some multiprocessors are left over. From cuOccupancyMaxActiveClusters on an H200."""


def multiprocessors_for(cluster: int) -> int:
    """Multiprocessors that clusters of this size can use."""
    return CLUSTERS_AT_ONCE.get(cluster, MULTIPROCESSORS) * cluster


def resident_blocks(warps: int, registers: int, shared_bytes: int) -> int:
    """Blocks that a multiprocessor runs at once: `registers` per thread, `shared_bytes` per block; at least one."""
    by_shared = RESIDENT_SHARED_BYTES // (shared_bytes + BLOCK_RESERVED_BYTES)
    return max(1, min(MOST_BLOCKS, REGISTERS // (registers * warps * 32), MOST_WARPS // warps, by_shared))
