"""Max pooling on a GPU by the kernels of farm.runtime, at least twice as fast as PyTorch's for common windows."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from farm.cuda.driver import driver
from farm.cuda.module import Module, launch_numbers
from farm.runtime.glue_kernels import glue_entry
from farm.runtime.lowering import THREADS
from farm.runtime.max_pools import PACK_BYTES, FastMaxPool
from farm.torch.contexts import launching_on
from farm.torch.layer import DTYPES
from farm.torch.operators.windows import max_pool, window_of

SIZES = ([2, 2], [3, 3])
"""Windows that the kernels are specialised for."""
MOST_OUTPUTS = 2**31
"""Limit of outputs of one image, which the kernel counts in 32 bits."""
_TYPES = {kind: name for name, kind in DTYPES.items()}
_functions: dict[tuple[str, int], ctypes.c_void_p] = {}
"""Loaded kernels by name and GPU."""
_lock = threading.Lock()


def own_max_pool(x: torch.Tensor, **attributes: Any) -> torch.Tensor:
    """MaxPool: by the farm's kernel for its windows on a GPU, else by PyTorch."""
    if x.is_cuda and x.ndim == 4 and x.dtype in _TYPES:
        asked = tuple((name, tuple(each) if isinstance(each, list) else each) for name, each in attributes.items())
        # Under torch.compile, sizes may be symbols, and a cache cannot be traced.
        own_window = _own_window.__wrapped__ if torch.compiler.is_compiling() else _own_window
        if (window := own_window(x.shape, asked)) is not None:
            pooled: torch.Tensor = torch.ops.farm.max_pool.default(x, *window)
            return pooled
    return max_pool(x, **attributes)


@lru_cache(maxsize=256)  # once per pool of a network, not per call
def _own_window(
    shape: torch.Size, asked: tuple[tuple[str, Any], ...]
) -> tuple[int, list[int], list[int], list[int]] | None:
    """Window, strides, pads and output sizes; None if the kernel does not support the pool."""
    attributes = dict(asked)
    extent = list(attributes["kernel_shape"])
    if extent not in SIZES:
        return None
    strides, dilations, begins, ends = window_of(shape[2:], extent, attributes)
    padded = [size + begin + end for size, begin, end in zip(shape[2:], begins, ends, strict=True)]
    sizes = [(size - e) // stride + 1 for size, e, stride in zip(padded, extent, strides, strict=True)]
    whole = not attributes.get("ceil_mode", 0) and dilations == [1, 1] and min(sizes) > 0
    if not whole or shape[1] * math.prod(sizes) >= MOST_OUTPUTS:
        return None
    return extent[0], strides, begins + ends, sizes


_LIBRARY = torch.library.Library("farm", "FRAGMENT")
_LIBRARY.define("max_pool(Tensor x, int window, int[] strides, int[] pads, SymInt[] sizes) -> Tensor")


def _run(x: torch.Tensor, window: int, strides: list[int], pads: list[int], sizes: list[int]) -> torch.Tensor:
    output = _empty(x, window, strides, pads, sizes)
    if output.numel() == 0:
        return output
    launch = _launch_of(x.shape[1:], window, tuple(strides), tuple(pads), tuple(sizes))
    x = _packed(x) if launch.packed else x.contiguous()
    arguments = [x.data_ptr(), output.data_ptr(), *launch.numbers, *([x.stride(0)] if launch.packed else [])]
    device = x.get_device()
    with launching_on(device):
        function = _function(f"{launch.kernel}_{_TYPES[x.dtype]}", device)
        stream = torch.cuda.current_stream(device).cuda_stream
        launch_numbers(function, (launch.blocks * x.shape[0], 1, 1), (THREADS, 1, 1), 0, arguments, stream)
    return output


@dataclass(frozen=True)
class _Launch:
    """Launch parameters of a pool for one image."""

    kernel: str
    """Name of the kernel without the data type."""
    threads: int
    """Threads per image."""
    more: tuple[int, ...]
    """Arguments after the number of blocks."""
    packed: bool
    """Whether images may lie apart, each contiguous; the distance is one more argument."""

    @property
    def blocks(self) -> int:
        """Blocks per image."""
        return -(-self.threads // THREADS)

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.blocks, *self.more)


@lru_cache(maxsize=256)
def _launch_of(
    image: tuple[int, int, int], window: int, strides: tuple[int, ...], pads: tuple[int, ...], sizes: tuple[int, ...]
) -> _Launch:
    channels, height, width = image
    pool = FastMaxPool.of([height, width], sizes, [window] * 2, strides, [1, 1], pads[:2])
    if pool is None:
        more = (channels, height, width, *sizes, window, window, *strides, *pads, 1, 1, 0)
        return _Launch("max_pool", channels * math.prod(sizes), more, packed=False)
    count = pool.threads(channels)
    more = (count, height, pool.fours, pool.out_height, pool.top)
    return _Launch(pool.kernel, count, more, packed=True)


def _packed(x: torch.Tensor) -> torch.Tensor:
    """The tensor, copied unless each image is contiguous and allows loads of 16 bytes; images may lie apart."""
    whole = list(x.stride()[1:]) == [x.shape[2] * x.shape[3], x.shape[3], 1]
    if whole and x.stride(0) * x.element_size() % PACK_BYTES == 0 and x.data_ptr() % PACK_BYTES == 0:
        return x
    x = x.contiguous()
    return x if x.data_ptr() % PACK_BYTES == 0 else x.clone()


def _empty(x: torch.Tensor, _window: int, _strides: Sequence[int], _pads: Sequence[int], sizes: Sequence[int]) -> Any:
    return x.new_empty([*x.shape[:2], *sizes])


def _function(name: str, device: int) -> ctypes.c_void_p:
    """A kernel, loaded into the current context at first use."""
    with _lock:
        if (name, device) not in _functions:
            driver()
            _functions[name, device] = Module(glue_entry(name)).function(name)
        return _functions[name, device]


_LIBRARY.impl("max_pool", _run, "CUDA")
torch.library.register_fake("farm::max_pool", _empty)
