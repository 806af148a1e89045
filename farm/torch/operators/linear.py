"""Large float32 fully connected layers outside of the compiled ones, computed transposed where that is faster."""

from __future__ import annotations

from typing import Any

import torch

from farm.torch.operators.table import gemm

LEAST_WEIGHTS = 2**22
"""Least number of weights for the transposed product."""
LEAST_ROWS, MOST_ROWS = 8, 64
"""Measured range of rows.

VGG-16 on an H200 at 64 rows: fc6 283 instead of 552 us, fc7 64 instead of 89 us. At 8 rows the gain is a few per cent;
at one row both orders take as long as reading the weights.
"""


def own_gemm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, **attributes: Any) -> torch.Tensor:
    """Gemm, computed as weights times rows for few rows and many float32 weights on a GPU."""
    plain = attributes.get("transB") and not attributes.get("transA")
    plain = plain and attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1
    if not plain or c is None or c.ndim != 1 or not _is_large(a, b):
        return gemm(a, b, c, **attributes)
    return torch.addmm(c[:, None], b, a.T).T.contiguous()


def _is_large(rows: torch.Tensor, weights: torch.Tensor) -> bool:
    """Whether the product is in the measured range; TensorFloat32 was not measured."""
    return (
        rows.is_cuda
        and rows.dtype == torch.float32
        and torch.get_float32_matmul_precision() == "highest"
        and LEAST_ROWS <= len(rows) <= MOST_ROWS
        and weights.numel() >= LEAST_WEIGHTS
    )
