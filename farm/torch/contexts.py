"""The CUDA context that the driver launches into: PyTorch makes it current in a thread when it calls CUDA there."""

from __future__ import annotations

import ctypes
import threading
from contextlib import AbstractContextManager, nullcontext

import torch

from farm.cuda.driver import call


class _Thread(threading.local):
    """What is known of a thread."""

    has_context = False


_thread = _Thread()


def launching_on(device: int) -> AbstractContextManager[None]:
    """What the driver launches within goes to that GPU.

    In a thread to which tensors were handed, PyTorch may have called nothing of CUDA yet: what it takes of its own
    memory needs no call. Raises DeviceError.
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
