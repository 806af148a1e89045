"""Checks of weights, and their rounding to a layer's data type."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.errors import CheckpointError
from codegen.ir.checkpoint import FloatArray
from codegen.ir.layer_spec import DataType

Doubles = NDArray[np.float64]

_BFLOAT16_BITS = 8
_BFLOAT16_SMALLEST = -133
"""Exponent of the smallest value above zero."""
_BFLOAT16_LARGEST = 2.0**128 - 2.0**120


def finite_weights(array: NDArray[Any], what: str) -> FloatArray:
    """The values as float32, -0.0 as 0.0. Raises CheckpointError for a NaN or an infinity."""
    with np.errstate(invalid="ignore"):
        values = array.astype(np.float32, copy=False)
    if bad := values.size - int(np.count_nonzero(np.isfinite(values))):
        raise CheckpointError(
            f"{bad} of its {values.size} {what} are NaN or infinite, which cannot be compiled: "
            "check the training, or export the model again"
        )
    return values + np.float32(0)


def rounded(values: Doubles, data_type: DataType) -> FloatArray:
    """The nearest values of the data type, ties to even, -0.0 as 0.0; overflow gives infinity."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if data_type == "float16":
            nearest = values.astype(np.float16).astype(np.float32)
        elif data_type == "bfloat16":
            nearest = _bfloat16(values).astype(np.float32)
        else:
            nearest = values.astype(np.float32, copy=False)
        return nearest + np.float32(0)


def _bfloat16(values: Doubles) -> Doubles:
    """The nearest bfloat16 values, rounded once; a conversion through float32 would round twice."""
    exponent = np.maximum(np.frexp(values)[1] - _BFLOAT16_BITS, _BFLOAT16_SMALLEST)
    nearest: Doubles = np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent)
    nearest[np.abs(nearest) > _BFLOAT16_LARGEST] *= np.inf
    return nearest
