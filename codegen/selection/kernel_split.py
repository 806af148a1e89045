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


def cut(streams: NDArray[np.float64], cluster: int = 1) -> tuple[Part, ...]:
    """Fewest parts that ptxas compiles in seconds each, or in a minute with clusters; about even, clusters whole."""
    if cluster > 1:
        of_cluster = streams.reshape(-1, cluster).sum(axis=1)
        count = math.ceil(float(streams.sum()) / CLUSTERED_INSTRUCTIONS)
        parts = _evenly(of_cluster, min(max(1, count), len(of_cluster)))
        return tuple(Part(part.first * cluster, part.end * cluster) for part in parts)
    count = math.ceil(float(streams.sum()) / PART_INSTRUCTIONS)
    if count <= 1:
        return (Part(0, len(streams)),)
    parts = _evenly(streams, count)
    # Streams are whole: often fewer parts are hardly larger.
    limit = 1.05 * _largest(streams, parts)
    while len(parts) > 1 and _largest(streams, fewer := _evenly(streams, len(parts) - 1)) <= limit:
        parts = fewer
    return parts


def _evenly(streams: NDArray[np.float64], count: int) -> tuple[Part, ...]:
    middles = np.cumsum(streams) - streams / 2
    part_of = np.minimum((middles * count / streams.sum()).astype(np.int64), count - 1)
    edges = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(streams)]
    return tuple(Part(first, end) for first, end in pairwise(edges))


def _largest(streams: NDArray[np.float64], parts: tuple[Part, ...]) -> float:
    return max(float(streams[part.first : part.end].sum()) for part in parts)
