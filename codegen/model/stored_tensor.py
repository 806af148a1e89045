"""A constant as a model file holds it, in the file or beside it, dense or sparse; and its values as an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from codegen.errors import CheckpointError
from codegen.layers import FloatArray
from codegen.model.external_data import ExternalData

LARGEST_RANK = 32
READABLE = ("float32", "int64")
LARGEST_SPARSE_ELEMENTS = 2**27
"""A dense tensor is as large as its data; a sparse one may claim anything: up to 512 MB of float32 are believed."""


@dataclass(frozen=True)
class StoredTensor:
    """A dense tensor: little-endian bytes (here or beside the model) or a list of numbers."""

    shape: tuple[int, ...]
    element_type: str
    """NumPy's name of it where there is one."""
    data: bytes | ExternalData | Sequence[float]

    def read(self) -> NDArray[np.generic]:
        """The values. Raises CheckpointError if there are more or fewer than the shape says, or of another type."""
        if self.element_type not in READABLE:
            raise CheckpointError(
                f"a constant is {self.element_type}, not {' or '.join(READABLE)}: export the model again"
            )
        dtype = np.dtype(self.element_type).newbyteorder("<")
        data = self.data.read() if isinstance(self.data, ExternalData) else self.data
        if isinstance(data, bytes):
            values = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
            size = len(data)
        else:
            values = np.array(data, dtype)
            size = values.nbytes
        if not _plausible(self.shape) or size != prod(self.shape) * dtype.itemsize:
            raise CheckpointError(
                f"a constant of the shape {list(self.shape)} holds {size} bytes of {self.element_type}: "
                "the file was cut short or damaged; export or copy it again"
            )
        return values.reshape(self.shape).astype(self.element_type)


@dataclass(frozen=True)
class SparseStoredTensor:
    """Zeros but for `values` at `indices`: positions [n] in the flattened tensor, or coordinates [n, rank]."""

    shape: tuple[int, ...]
    values: StoredTensor
    indices: StoredTensor

    @property
    def element_type(self) -> str:
        """That of the values."""
        return self.values.element_type

    def read(self) -> NDArray[np.generic]:
        """The values, zeros included. Raises CheckpointError if the indices do not fit."""
        values = self.values.read()
        indices = self.indices.read().astype(np.int64)
        if not _plausible(self.shape) or prod(self.shape) > LARGEST_SPARSE_ELEMENTS:
            raise CheckpointError(f"a sparse constant has the shape {list(self.shape)}: store it as a dense one")
        try:
            if indices.ndim == 2:
                indices = np.ravel_multi_index(tuple(indices.T), self.shape).astype(np.int64)
            if indices.shape != values.shape or (indices.size and indices.min() < 0):
                raise IndexError("one index per value, 0 or more")
            dense = np.zeros(prod(self.shape), values.dtype)
            dense[indices] = values
        except (IndexError, ValueError) as error:
            raise CheckpointError(
                f"the indices of a sparse constant do not fit ({error}): export the model again"
            ) from error
        return dense.reshape(self.shape)


def read_weights(stored: StoredTensor | SparseStoredTensor, what: str) -> FloatArray:
    """Float32 values, -0.0 as 0.0. Raises CheckpointError for a NaN or an infinity."""
    array = stored.read().astype(np.float32)
    if bad := array.size - int(np.count_nonzero(np.isfinite(array))):
        raise CheckpointError(
            f"{bad} of its {array.size} {what} are NaN or infinite, which cannot be compiled: "
            "check the training, or export the model again"
        )
    return array + np.float32(0)


def _plausible(shape: tuple[int, ...]) -> bool:
    return min(shape, default=1) >= 0 and len(shape) <= LARGEST_RANK
