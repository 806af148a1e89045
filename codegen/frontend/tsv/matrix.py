"""Sparse weight matrices as triples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import FloatArray


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A layer's weights as triples: `values[i]` is the weight from neuron `sources[i]` to neuron `targets[i]`."""

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    values: FloatArray

    def kernel(self, inputs: int, outputs: int) -> FloatArray:
        """The dense weights [outputs, inputs]."""
        dense = np.zeros((outputs, inputs), dtype=np.float32)
        dense[self.targets, self.sources] = self.values
        return dense
