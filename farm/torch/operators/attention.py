"""ONNX's Attention in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from farm.errors import UsageError

_WITHOUT_EFFECT = frozenset({"opset", "outputs", "qk_matmul_output_mode", "softmax_precision"})
"""Arguments that do not change the first output, but for its last bits."""


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *cached: torch.Tensor | None,
    is_causal: int = 0,
    scale: float | None = None,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
    **more: Any,
) -> torch.Tensor:
    """Attention of one to many heads, which are apart or lie side by side in the last axis. Raises UsageError."""
    unknown = [name for name, value in more.items() if value and name not in _WITHOUT_EFFECT]
    unknown += ["a cache"] * any(each is not None for each in cached)
    if unknown:
        raise UsageError(f"farm.torch does not support Attention with {', '.join(unknown)}: use another runtime")
    if side_by_side := query.ndim == 3:
        query, key, value = _heads(query, q_num_heads), _heads(key, kv_num_heads), _heads(value, kv_num_heads)
    if mask is not None and is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, float("-inf"))
    found = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        mask,
        is_causal=bool(is_causal) and mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return found.transpose(1, 2).flatten(2) if side_by_side else found


def _heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)
