"""Max pooling of a bundle's network, where there is no GPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from farm.torch.pooling import own_max_pool  # noqa: E402 - after the check for torch
from farm.torch.windows import max_pool  # noqa: E402


def test_on_the_cpu_pytorch_pools() -> None:
    x = torch.randn(2, 3, 9, 8)
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    torch.testing.assert_close(own_max_pool(x, **window), max_pool(x, **window), rtol=0, atol=0)


def test_the_operators_shape_is_known_without_running_it() -> None:
    x = torch.empty(2, 3, 9, 8, device="meta", dtype=torch.float16)
    pooled = torch.ops.farm.max_pool(x, 3, [2, 2], [1, 1, 1, 1], [5, 4])
    assert (pooled.shape, pooled.dtype) == ((2, 3, 5, 4), torch.float16)
