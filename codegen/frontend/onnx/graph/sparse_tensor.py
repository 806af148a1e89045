"""A sparse constant made dense."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph.evaluation import LARGEST_ELEMENTS


def dense_of(shape: tuple[int, ...], values: NDArray[Any], indices: NDArray[Any]) -> NDArray[Any]:
    """Zeros but for `values` at `indices`: positions [n] in the flattened tensor, or coordinates [n, rank].

    Raises CheckpointError if the indices do not fit.
    """
    if min(shape, default=1) < 0 or prod(shape) > LARGEST_ELEMENTS:
        raise CheckpointError(f"a sparse constant has the shape {list(shape)}: store it as a dense one")
    try:
        positions = indices.astype(np.int64)
        if positions.ndim == 2:
            positions = np.ravel_multi_index(tuple(positions.T), shape).astype(np.int64)
        if positions.shape != values.shape or (positions.size and positions.min() < 0):
            raise IndexError("one index per value, 0 or more")
        dense = np.zeros(prod(shape), values.dtype)
        dense[positions] = values
        return dense.reshape(shape)
    except (IndexError, ValueError) as error:
        raise CheckpointError(
            f"the indices of a sparse constant do not fit ({error}): export the model again"
        ) from error
