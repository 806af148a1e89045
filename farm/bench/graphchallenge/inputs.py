"""Inputs of the sparse DNN challenge: digits scaled to the network's width and thresholded to 0 and 1."""

from __future__ import annotations

import os
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import FloatArray
from farm.errors import UsageError

ROWS = 60_000
"""Input rows of the challenge."""
THRESHOLD, NOISE = 0.66, 0.1
"""Threshold and standard deviation of the noise, as shares of the darkest value."""
BLOCK = 4096
COPIES = 3
"""Approximate number of copies of the inputs in memory: as rows, as tiles, and in transfer."""
DENSE_BYTES = 4 + 8
"""Bytes per possible weight of a layer: dense in float32, and in float64 for the reference."""


def check_memory(neurons: int, count: int) -> None:
    """Raises UsageError for inputs that do not fit this machine's memory, before they are made."""
    needed = COPIES * 4 * count * neurons
    _check(needed, f"{count:,} rows of {neurons:,} neurons take", "give fewer with --rows, or fewer --neurons")


def check_layer_memory(neurons: int) -> None:
    """Raises UsageError for a layer whose dense form does not fit this machine's memory."""
    _check(DENSE_BYTES * neurons**2, f"a layer of {neurons:,} neurons takes", "emulate one of fewer --neurons")


def _check(needed_bytes: int, what: str, way_out: str) -> None:
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed_bytes > there:
        raise UsageError(
            f"{what} {needed_bytes / 1e9:.0f} GB of memory and this machine has {there / 1e9:.0f} GB: {way_out}"
        )


def digit_rows(neurons: int, count: int = ROWS, seed: int = 0) -> FloatArray:
    """Inputs [count, neurons] of 0 and 1: scikit-learn's digits repeated, each time with new noise.

    Raises UsageError without scikit-learn, for neurons that are not a square, or for more rows than fit in memory.
    """
    check_memory(neurons, count)
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UsageError(
            "the digits come from scikit-learn, which is not installed: install it, or give --inputs FILE.tsv"
        ) from None
    return rows_of(load_digits().images, neurons, count, seed)


def rows_of(images: NDArray[Any], neurons: int, count: int, seed: int, threshold: float = THRESHOLD) -> FloatArray:
    """Inputs [count, neurons] of 0 and 1 from gray images [n, 8, 8], where 16 is darkest."""
    side = isqrt(neurons)
    if side * side != neurons:
        raise UsageError(f"{neurons} neurons are not a square of pixels: give 1024, 4096, 16384 or 65536")
    large = _enlarged(images.astype(np.float32) / np.float32(16), side).reshape(len(images), neurons)
    rng = np.random.default_rng(seed)
    rows = np.empty((count, neurons), dtype=np.float32)
    for first in range(0, count, BLOCK):
        chosen = large[np.arange(first, min(first + BLOCK, count)) % len(large)]
        noise = rng.standard_normal(chosen.shape, dtype=np.float32) * np.float32(NOISE)
        rows[first : first + len(chosen)] = chosen + noise > threshold
    return rows


def _enlarged(images: FloatArray, side: int) -> FloatArray:
    """Images [n, side, side], interpolated linearly between pixel centres."""
    old = images.shape[1]
    places = np.clip((np.arange(side) + 0.5) * old / side - 0.5, 0, old - 1)
    lower = np.minimum(places.astype(np.int64), old - 2)
    share = (places - lower).astype(np.float32)
    weights = np.zeros((side, old), dtype=np.float32)
    weights[np.arange(side), lower] = 1 - share
    weights[np.arange(side), lower + 1] += share
    large: FloatArray = np.einsum("ij,njk,lk->nil", weights, images, weights)
    return large
