"""Max pooling on a GPU by the kernel of farm.runtime, which takes about half of PyTorch's time for usual windows."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from typing import Any

import torch

from farm.gpu.driver import driver
from farm.gpu.loaded import Module, launch
from farm.runtime.kernels import rest_entry
from farm.runtime.lowering import THREADS
from farm.torch.layer import DTYPES
from farm.torch.windows import max_pool, window_of

SIZES = ([2, 2], [3, 3])
"""The windows that the kernel has code of its own for."""
MOST_OUTPUTS = 2**31
"""Of one image: the kernel counts them in 32 bits."""
_TYPES = {kind: name for name, kind in DTYPES.items()}
_functions: dict[tuple[str, int], ctypes.c_void_p] = {}
"""By data type and GPU."""
_lock = threading.Lock()


def own_max_pool(x: torch.Tensor, outputs: int = 1, **attributes: Any) -> torch.Tensor:
    """MaxPool: by the farm's kernel on a GPU, for the windows that it is made for, and else by PyTorch."""
    extent = list(attributes["kernel_shape"])
    if x.is_cuda and x.ndim == 4 and x.dtype in _TYPES and extent in SIZES and outputs == 1:
        strides, dilations, begins, ends = window_of(x, extent, attributes)
        padded = [size + begin + end for size, begin, end in zip(x.shape[2:], begins, ends, strict=True)]
        sizes = [(size - e) // stride + 1 for size, e, stride in zip(padded, extent, strides, strict=True)]
        whole = not attributes.get("ceil_mode", 0) and dilations == [1, 1] and min(sizes) > 0
        if whole and x.shape[1] * math.prod(sizes) < MOST_OUTPUTS:
            pooled: torch.Tensor = torch.ops.farm.max_pool(x, extent[0], strides, begins + ends, sizes)
            return pooled
    return max_pool(x, outputs, **attributes)


_LIBRARY = torch.library.Library("farm", "FRAGMENT")
_LIBRARY.define("max_pool(Tensor x, int window, int[] strides, int[] pads, SymInt[] sizes) -> Tensor")


def _run(x: torch.Tensor, window: int, strides: list[int], pads: list[int], sizes: list[int]) -> torch.Tensor:
    x = x.contiguous()
    images, channels, height, width = x.shape
    output = _empty(x, window, strides, pads, sizes)
    if output.numel() == 0:
        return output
    blocks = -(-channels * math.prod(sizes) // THREADS)
    numbers = [blocks, channels, height, width, *sizes, window, window, *strides, *pads, 1, 1, 0]
    arguments = [ctypes.c_uint64(x.data_ptr()), ctypes.c_uint64(output.data_ptr()), *map(ctypes.c_int32, numbers)]
    with torch.cuda.device(x.device):
        function = _function(_TYPES[x.dtype], torch.cuda.current_device())
        stream = torch.cuda.current_stream().cuda_stream
        launch(function, (blocks * images, 1, 1), (THREADS, 1, 1), 0, arguments, stream)
    return output


def _empty(x: torch.Tensor, _window: int, _strides: Sequence[int], _pads: Sequence[int], sizes: Sequence[int]) -> Any:
    return x.new_empty([*x.shape[:2], *sizes])


def _function(kind: str, device: int) -> ctypes.c_void_p:
    """Loaded into the current context when it is first used there."""
    with _lock:
        if (kind, device) not in _functions:
            driver()
            name = f"max_pool_{kind}"
            _functions[kind, device] = Module(rest_entry(name)).function(name)
        return _functions[kind, device]


_LIBRARY.impl("max_pool", _run, "CUDA")
torch.library.register_fake("farm::max_pool", _empty)
