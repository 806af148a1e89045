"""The current CUDA context of a thread, which PyTorch sets only when it calls CUDA there."""

from __future__ import annotations

import ctypes
import threading
from contextlib import AbstractContextManager, nullcontext

import torch

from farm.cuda.driver import call


class _Thread(threading.local):
    """State of a thread."""

    has_context = False


_thread = _Thread()


def launching_on(device: int) -> AbstractContextManager[None]:
    """Make a GPU current for launches through the driver within the block.

    In a thread that was handed tensors, PyTorch may not have called CUDA yet, because its allocator serves cached
    memory without a call. Raises DeviceError.
    """
    current = torch.cuda.current_device()
    if not _thread.has_context:
        _make_current(current)
        _thread.has_context = True
    return nullcontext() if device == current else torch.cuda.device(device)


def _make_current(device: int) -> None:
    context, handle = ctypes.c_void_p(), ctypes.c_int()
    call("cuCtxGetCurrent", ctypes.byref(context))
    if not context:
        call("cuDeviceGet", ctypes.byref(handle), device)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle.value)
        call("cuCtxSetCurrent", context)
