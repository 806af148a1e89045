"""Error bounds of single outputs, from the outcomes that verification allows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import LayerSpec
from codegen.kernels.output_region import EVERYTHING, Region
from codegen.verification.reference import outcomes


def error_bound(
    spec: LayerSpec,
    weights: Weights,
    x: NDArray[Any],
    region: Region = EVERYTHING,
    residual: NDArray[Any] | None = None,
    products_together: int | None = None,
) -> NDArray[np.float64]:
    """Largest distance of each output of a correct kernel from `layer_output`; infinite where it may overflow."""
    first, *others = outcomes(spec, weights, x, region, residual, products_together)
    unbounded = ~np.isfinite(first.value)
    for other in others:
        unbounded |= other.possible
    return np.where(unbounded, np.inf, first.error)
