"""Where the zeros of a layer are: its weights as a small picture. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import FloatArray

MOST_ROWS, MOST_COLUMNS = 64, 96
"""Cells of a map: of a larger layer each stands for several weights."""


@dataclass(frozen=True, eq=False)
class ZeroMap:
    """The weights of a layer: output channels from top to bottom, what each of them reads from left to right."""

    densities: NDArray[np.float64]
    """[rows, columns]: non-zeros / weights of each cell, 0 to 1."""
    kernels: int
    """Output channels."""
    inputs: int
    """Weights of one output channel."""
    empty_kernels: int
    """Output channels without a non-zero: constants."""
    empty_inputs: int
    """Input channels, those of each group counted once, that no output channel reads; inputs of a Linear."""

    @property
    def is_exact(self) -> bool:
        """Whether each cell is one weight."""
        return self.densities.shape == (self.kernels, self.inputs)


def zero_map(kernel: FloatArray) -> ZeroMap:
    """The map of a layer's weights, [K, ...]."""
    there = kernel != 0
    flat = there.reshape(len(there), -1)
    rows, columns = (_edges(count, most) for count, most in zip(flat.shape, (MOST_ROWS, MOST_COLUMNS), strict=True))
    # Some rows at a time: of the largest layers there is no room for a number for each weight.
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
    """Where the cells of so many rows or columns begin, and the end: a cell for each, or `most`."""
    return [int(edge) for edge in np.linspace(0, count, min(count, most) + 1)]
