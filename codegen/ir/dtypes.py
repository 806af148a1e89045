"""The data types of layers in NumPy, which has no bfloat16: its values are held as their 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.ir.layer_spec import DataType

ELEMENT_BYTES: dict[DataType, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Precision:
    """The error of rounding to nearest in a data type."""

    unit_roundoff: float
    """Largest relative error of rounding: 2^-p with p bits of significand, the hidden one included."""
    smallest_subnormal: float
    """Half of it is the largest error of rounding where the result is subnormal."""
    largest: float
    """The largest finite value."""


PRECISIONS: dict[DataType, Precision] = {
    "float32": Precision(2.0**-24, 2.0**-149, (2 - 2.0**-23) * 2.0**127),
    "float16": Precision(2.0**-11, 2.0**-24, 65504.0),
    "bfloat16": Precision(2.0**-8, 2.0**-133, (2 - 2.0**-7) * 2.0**127),
}


def numpy_dtype(data_type: DataType) -> np.dtype[Any]:
    """The NumPy type that holds values of a data type: float32, float16, or uint16 for the bits of bfloat16."""
    return np.dtype({"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[data_type])


def to_float32(values: NDArray[Any], data_type: DataType) -> NDArray[np.float32]:
    """The values, exact, of an array of `numpy_dtype(data_type)`. Raises ValueError for an array of another type."""
    if values.dtype != numpy_dtype(data_type):
        expected = numpy_dtype(data_type)
        raise ValueError(f"an array of {values.dtype} where {data_type} is held in {expected}: convert it first")
    if data_type == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def from_float32(values: NDArray[np.float32], data_type: DataType) -> NDArray[Any]:
    """The nearest values of the data type, ties to even, in an array of `numpy_dtype(data_type)`.

    Values beyond the largest become infinite; NaN stays NaN. Raises ValueError for an array that is not float32.
    """
    if values.dtype != np.float32:
        raise ValueError(f"an array of {values.dtype} to round from float32: convert it first")
    if data_type == "bfloat16":
        return _to_bfloat16(values)
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(numpy_dtype(data_type))


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = values.view(np.uint32)
    half = 0x7FFF + ((bits >> 16) & 1)  # just under half a step, or half a step where the bits to keep are odd
    rounded = (bits.astype(np.uint64) + half) >> 16
    quiet = (bits >> 16) | 0x40  # rounding could carry a NaN into infinity or zero, and cutting make it an infinity
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
