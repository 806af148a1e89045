"""Where the zeros of a layer are: its weights as a small picture. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.layers import FloatArray

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
    densities = _averaged(_averaged(flat.astype(np.float64), MOST_ROWS).T, MOST_COLUMNS).T
    return ZeroMap(
        densities=densities,
        kernels=flat.shape[0],
        inputs=flat.shape[1],
        empty_kernels=int((~flat.any(axis=1)).sum()),
        empty_inputs=int((~there.any(axis=(0, *range(2, there.ndim)))).sum()),
    )


def _averaged(values: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Averages of neighbouring rows, as many as `most` if there are more."""
    count = len(values)
    if count <= most:
        return values
    edges = np.linspace(0, count, most + 1).astype(np.int64)
    sums: NDArray[np.float64] = np.add.reduceat(values, edges[:-1], axis=0)
    return sums / np.diff(edges)[:, None]
