"""Max pooling by the farm's kernel gives what PyTorch's does."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from farm.cuda.device import Device
from farm.torch.operators.pooling import own_max_pool
from farm.torch.operators.windows import max_pool

WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [1, 1], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [0, 1, 1, 0]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2, 2, 2, 2]},
]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 17, 23), (1, 64, 112, 112), (5, 7, 19, 40), (0, 2, 8, 8)], ids=str)
def test_pools_agree_in_every_bit(device: Device, window: dict[str, Any], kind: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, device="cuda").to(kind)
    if x.numel():
        x[0, 0, 3, 4] = float("nan")
        x[0, 1] = -float("inf")
    torch.testing.assert_close(own_max_pool(x, **window), max_pool(x, **window), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("window", WINDOWS[:2], ids=str)
def test_an_image_may_lie_among_others_and_anywhere(device: Device, window: dict[str, Any]) -> None:
    whole = torch.randn(3, 9, 8, 16, device="cuda")
    for x in (whole[:, 2:7], whole[:, :, :, 1:9], whole.flatten()[1 : 1 + 9 * 8 * 16].view(1, 9, 8, 16)):
        torch.testing.assert_close(own_max_pool(x, **window), max_pool(x, **window), rtol=0, atol=0)


def test_a_pool_of_channels_last_is_computed_too(device: Device) -> None:
    x = torch.randn(2, 8, 9, 9, device="cuda").to(memory_format=torch.channels_last)
    window = WINDOWS[0]
    torch.testing.assert_close(own_max_pool(x, **window), max_pool(x, **window), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # within torch
def test_a_compiled_pool_computes_the_same(device: Device) -> None:
    x = torch.randn(2, 8, 9, 9, device="cuda")
    compiled = torch.compile(lambda x: own_max_pool(x, **WINDOWS[0]))
    torch.testing.assert_close(compiled(x), max_pool(x, **WINDOWS[0]), rtol=0, atol=0)
