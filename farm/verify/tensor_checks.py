"""Comparison of tensors with onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.ir.dtypes import to_float32
from farm.verify.layers import LayerVerification
from farm.verify.onnxruntime_reference import ReferenceTensor

TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest difference of an element as a share of its tensor's largest element, or of the smallest normal number if
that is larger: numbers below it have fewer digits.

Both sum in different orders, and errors grow from layer to layer. Tensors of other types are equal.
"""
SMALLEST_NORMAL = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
QUANTIZED_TOLERANCE = 2e-2
"""Share that replaces a smaller one in networks that quantize activations to 8 bits: a value near the middle of two
steps may be rounded to either, and what is computed from it differs too. A step is 0.4 % of the largest element."""
STEPS = 1.5
"""Most steps that a rounded element is off; between one and two, for the rounding of the step itself."""
ROUNDINGS_OF_ONE = {"float32": 4 * 2**-23, "float16": 4 * 2**-10, "bfloat16": 4 * 2**-7}
"""Four roundings of 1: the allowed error, however small the result, of saturating operators and of clipped operands as
large as 1."""

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorCheck:
    """Comparison of one tensor."""

    name: str
    layer: str
    """The compiled layer that computes it; empty for other operators."""
    elements: int
    """Number of compared elements."""
    relative_error: float
    """Norm of the difference over norm of onnxruntime's tensor."""
    error: float
    """Largest difference."""
    tolerance: float
    """Largest allowed difference."""
    emulated: LayerVerification | None = None
    """Comparison of the same elements with float64, where only sampled blocks of a layer ran."""

    @property
    def tolerance_share(self) -> float:
        """Largest difference as a share of the tolerance; at most 1 for a correct tensor."""
        if self.error == 0:
            return 0.0
        return self.error / self.tolerance if self.tolerance and np.isfinite(self.error) else float("inf")

    @property
    def ok(self) -> bool:
        return self.tolerance_share <= 1 and (self.emulated is None or self.emulated.verification.ok)


def is_quantized(tensors: Mapping[str, ReferenceTensor]) -> bool:
    """Whether these tensors are of a model that quantizes activations."""
    return any(each.quantized for each in tensors.values())


def check_tensor(
    name: str,
    layer: str,
    got: Array,
    reference: ReferenceTensor,
    where: NDArray[np.bool_] | None = None,
    *,
    quantized: bool = False,
    step: float = 0.0,
) -> TensorCheck:
    """Compares a tensor, or its elements in the mask `where`. `got` holds the tensor's bytes first.

    `quantized` says that it depends on quantized activations; `step` is the distance of its numbers if it is rounded
    itself, of which values may be one off however few steps its largest element has.
    """
    wanted = reference.values
    dtype = wanted.dtype.name
    held = np.frombuffer(got.tobytes()[: wanted.nbytes], np.uint16 if dtype == "bfloat16" else wanted.dtype)
    values = (to_float32(held, "bfloat16") if dtype == "bfloat16" else held).astype(np.float64)
    expected = wanted.astype(np.float64).reshape(-1)
    largest = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
    if where is not None:
        values, expected = values[where.reshape(-1)], expected[where.reshape(-1)]
    with np.errstate(all="ignore"):
        difference = np.where(values == expected, 0.0, np.abs(values - expected))
    difference[np.isnan(values) & np.isnan(expected)] = 0.0
    allowed = 0.0
    if share := TOLERANCES.get(dtype):
        allowed = max(share, QUANTIZED_TOLERANCE if quantized else 0.0) * max(largest, SMALLEST_NORMAL[dtype])
    allowed = max(allowed, reference.roundings_of_one * ROUNDINGS_OF_ONE.get(dtype, 0.0))
    allowed = max(allowed, STEPS * step)
    norm = float(np.sqrt(np.sum(expected[np.isfinite(expected)] ** 2)))
    error = float(np.sqrt(np.sum(difference**2)))
    worst = float(np.max(difference, initial=0.0))
    return TensorCheck(name, layer, expected.size, error / norm if norm else error, worst, allowed)
