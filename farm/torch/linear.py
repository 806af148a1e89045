"""Large fully connected layers that are not compiled, in float32: turned round where that is faster."""

from __future__ import annotations

from typing import Any

import torch

from farm.torch.operators import gemm

LEAST_WEIGHTS = 2**22
LEAST_ROWS, MOST_ROWS = 8, 64
"""With which it was measured: at 64 rows 283 instead of 552 us for VGG-16's fc6, 64 instead of 89 us for fc7, on an
H200; at 8 a few per cent less; for one row both take what reading the weights takes."""


def own_gemm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, **attributes: Any) -> torch.Tensor:
    """Gemm: for few rows and many weights of float32 on a GPU as weights times rows, else as PyTorch does it."""
    plain = attributes.get("transB") and not attributes.get("transA")
    plain = plain and attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1
    if not plain or c is None or c.ndim != 1 or not _is_large(a, b):
        return gemm(a, b, c, **attributes)
    return torch.addmm(c[:, None], b, a.T).T.contiguous()


def _is_large(rows: torch.Tensor, weights: torch.Tensor) -> bool:
    """Whether it is among the products that were measured; by TensorFloat32 none was."""
    return (
        rows.is_cuda
        and rows.dtype == torch.float32
        and torch.get_float32_matmul_precision() == "highest"
        and LEAST_ROWS <= len(rows) <= MOST_ROWS
        and weights.numel() >= LEAST_WEIGHTS
    )
