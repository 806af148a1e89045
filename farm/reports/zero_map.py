"""Zero map of a layer: the density of its weights as a small picture."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import FloatArray

MAX_ROWS, MAX_COLUMNS = 64, 96
"""Most cells of a map; in a larger layer a cell covers several weights."""


@dataclass(frozen=True, eq=False)
class ZeroMap:
    """Densities of a layer's weights: output channels from top to bottom, their inputs from left to right."""

    densities: NDArray[np.float64]
    """Non-zero share of each cell, [rows, columns]."""
    kernels: int
    """Output channels."""
    inputs: int
    """Weights of one output channel."""
    empty_kernels: int
    """Output channels without non-zeros, which are constant."""
    empty_inputs: int
    """Input channels, or inputs of a Linear, that no output channel reads; each group counts its own."""

    @property
    def is_exact(self) -> bool:
        """Whether each cell is one weight."""
        return self.densities.shape == (self.kernels, self.inputs)


def zero_map(kernel: FloatArray) -> ZeroMap:
    """Zero map of a layer's weights [K, ...]."""
    there = kernel != 0
    flat = there.reshape(len(there), -1)
    rows, columns = (_edges(count, most) for count, most in zip(flat.shape, (MAX_ROWS, MAX_COLUMNS), strict=True))
    # Some rows at a time: a number per weight does not fit in memory for the largest layers.
    sums = np.array([np.count_nonzero(flat[first:end], axis=0) for first, end in pairwise(rows)])
    sums = np.add.reduceat(sums, columns[:-1], axis=1)
    return ZeroMap(
        densities=sums / np.outer(np.diff(rows), np.diff(columns)),
        kernels=flat.shape[0],
        inputs=flat.shape[1],
        empty_kernels=int((~flat.any(axis=1)).sum()),
        empty_inputs=int((~there.any(axis=(0, *range(2, there.ndim)))).sum()),
    )


def _edges(count: int, most: int) -> list[int]:
    """Boundaries of up to `most` cells over `count` rows or columns."""
    return [int(edge) for edge in np.linspace(0, count, min(count, most) + 1)]
