"""Weights as cuSPARSE is given them."""

from __future__ import annotations

import warnings

import torch

from codegen.ir.checkpoint import FloatArray


def csr_of(kernel: FloatArray) -> torch.Tensor:
    """With indices of 32 bits: what cuSPARSE is fastest with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CSR is in beta
        plain = torch.from_numpy(kernel).cuda().to_sparse_csr()
        return torch.sparse_csr_tensor(
            plain.crow_indices().int(), plain.col_indices().int(), plain.values(), size=kernel.shape
        )
