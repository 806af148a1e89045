"""The split of a layer's K groups into kernels that ptxas compiles in seconds."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from codegen.ir.tiling import Part

PART_INSTRUCTIONS = 40_000
"""Most instructions of one kernel, over all its K groups: ptxas takes about 10 s for them."""
CLUSTERED_INSTRUCTIONS = 400_000
"""Most instructions of one kernel with channels split over clusters: the short streams of a layer run side by side."""


def cut(streams: NDArray[np.float64], cluster: int = 1, block_groups: int = 1) -> tuple[Part, ...]:
    """Fewest parts that ptxas compiles in seconds each, or in a minute with clusters; about even, clusters whole.

    `block_groups`: streams that the warps of one block follow, which stay together too.
    """
    count = math.ceil(float(streams.sum()) / (CLUSTERED_INSTRUCTIONS if cluster > 1 else PART_INSTRUCTIONS))
    if count <= 1:
        return (Part(0, len(streams)),)
    together = cluster * block_groups
    blocks = streams.reshape(-1, together).sum(axis=1)
    parts = _evenly(blocks, min(count, len(blocks)) if cluster > 1 else count)
    if cluster == 1:
        # Streams are whole: often fewer parts are hardly larger.
        limit = 1.05 * _largest(blocks, parts)
        while len(parts) > 1 and _largest(blocks, fewer := _evenly(blocks, len(parts) - 1)) <= limit:
            parts = fewer
    return tuple(Part(part.first * together, part.end * together) for part in parts)


def _evenly(streams: NDArray[np.float64], count: int) -> tuple[Part, ...]:
    middles = np.cumsum(streams) - streams / 2
    part_of = np.minimum((middles * count / streams.sum()).astype(np.int64), count - 1)
    edges = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(streams)]
    return tuple(Part(first, end) for first, end in pairwise(edges))


def _largest(streams: NDArray[np.float64], parts: tuple[Part, ...]) -> float:
    return max(float(streams[part.first : part.end].sum()) for part in parts)
