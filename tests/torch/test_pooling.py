"""Max pooling of a bundle's network, where there is no GPU: the emulator runs what would be launched."""

from __future__ import annotations

import ctypes
import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from codegen.emulator.ptx import emulate
from farm.runtime.glue_kernels import glue_entry
from farm.torch.operators import pooling
from farm.torch.operators.pooling import own_max_pool
from farm.torch.operators.windows import max_pool


def test_on_the_cpu_pytorch_pools() -> None:
    x = torch.randn(2, 3, 9, 8)
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    torch.testing.assert_close(own_max_pool(x, **window), max_pool(x, **window), rtol=0, atol=0)


def test_the_operators_shape_is_known_without_running_it() -> None:
    x = torch.empty(2, 3, 9, 8, device="meta", dtype=torch.float16)
    pooled = torch.ops.farm.max_pool(x, 3, [2, 2], [1, 1, 1, 1], [5, 4])
    assert (pooled.shape, pooled.dtype) == ((2, 3, 5, 4), torch.float16)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels run in the emulator on the CPU's memory; gives the names of those that were launched."""
    launched: list[str] = []

    def launch(name: str, grid: Any, block: Any, shared_bytes: int, arguments: Any, _stream: int) -> None:
        launched.append(name)
        memory = [(ctypes.c_uint8 * REACH_BYTES).from_address(each) for each in arguments[:2]]
        values = [np.frombuffer(each, np.uint8) for each in memory] + arguments[2:]
        emulate.run(glue_entry(name), grid, block, shared_bytes, values, kernel=name)

    monkeypatch.setattr(pooling, "_function", lambda name, _device: name)
    monkeypatch.setattr(pooling, "launch_numbers", launch)
    monkeypatch.setattr(pooling, "launching_on", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    return launched


REACH_BYTES = 4 * 3 * 8 * 10 * 16
"""Bytes that the emulator may reach at an address: the largest tensor's here."""


def room(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers with as much memory behind them as the emulator is told of."""
    return torch.randn(2 * REACH_BYTES).to(dtype)[: math.prod(shape)].reshape(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("window", "pads", "kernel"),
    [(2, [0, 0, 0, 0], "max_pool_2x2"), (3, [1, 1, 1, 1], "max_pool_3x3"), (3, [1, 0, 1, 1], "max_pool")],
)
def test_the_kernel_that_is_launched_computes_what_pytorch_does(
    window: int, pads: list[int], kernel: str, dtype: torch.dtype, emulated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = room(3, 4, 10, 16, dtype=dtype)
    attributes = {"kernel_shape": [window] * 2, "strides": [2, 2], "pads": pads}
    wanted = max_pool(x, **attributes)
    monkeypatch.setattr(pooling, "_empty", lambda x, *_: room(*wanted.shape, dtype=dtype))
    found = pooling._run(x, window, [2, 2], pads, list(wanted.shape[2:]))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert emulated == [f"{kernel}_{str(dtype).removeprefix('torch.')}"]


def test_an_image_that_lies_among_others_is_read_where_it_is(
    emulated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = room(3, 8, 10, 16)
    monkeypatch.setattr(pooling, "_empty", lambda x, *_: room(3, 4, 5, 8))
    x = whole[:, 2:6]
    assert pooling._packed(x) is x
    wanted = max_pool(x, kernel_shape=[2, 2], strides=[2, 2])
    torch.testing.assert_close(pooling._run(x, 2, [2, 2], [0] * 4, [5, 8]), wanted, rtol=0, atol=0)
    for other in (whole[:, :, :, 1:9], whole.flatten()[1 : 1 + 8 * 10 * 16].view(1, 8, 10, 16)):
        packed = pooling._packed(other)
        assert packed.data_ptr() % 16 == 0
        assert packed.is_contiguous()
