"""Shared memory that kernels ask for so that their blocks lie evenly on the multiprocessors.

Blocks of a kernel that begins early start one by one, where others end, and crowd on the multiprocessors that are free
first, unless they ask for so much shared memory that a multiprocessor has no room for more than its share: ResNet-18 of
one image then takes 126 us instead of 144 on an H200. farm/runtime/c/farm.c has the rule too.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod

from codegen.ir.launch import Launch
from farm.cuda.driver import attribute, call

_MULTIPROCESSORS, _SHARED, _BLOCK_SHARED, _RESERVED = 16, 81, 97, 111
"""CU_DEVICE_ATTRIBUTE numbers."""
_CLUSTER_SIZES = (11, 12, 13)
"""CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, _HEIGHT and _DEPTH."""
SHARED_UNIT = 128
"""Shared memory is given in multiples of this many bytes."""


@dataclass(frozen=True)
class SharedMemory:
    """Number of multiprocessors of a GPU, and limits of their shared memory in bytes."""

    multiprocessors: int
    multiprocessor_bytes: int
    """Shared memory of one multiprocessor."""
    block_bytes: int
    """Maximum that one block may request."""
    reserved_bytes: int
    """Share of each block that the driver reserves."""

    @staticmethod
    def of_current_device() -> SharedMemory:
        """Shared memory of the current context's GPU. Raises DeviceError."""
        device = ctypes.c_int()
        call("cuCtxGetDevice", ctypes.byref(device))
        numbers = (_MULTIPROCESSORS, _SHARED, _BLOCK_SHARED, _RESERVED)
        return SharedMemory(*(attribute(number, device.value) for number in numbers))


def even_bytes(needed: int, blocks: int, cluster: int, gpu: SharedMemory) -> int:
    """Bytes that each of some blocks asks for to lie evenly; at least the `needed` ones.

    `cluster`: blocks of a cluster. Clusters of more than two stay within a GPC: on an H200 they reach ten of eleven
    multiprocessors.
    """
    usable = gpu.multiprocessors if cluster <= 2 else gpu.multiprocessors * 10 // 11 // cluster * cluster
    share = -(-blocks // max(1, usable))
    most = min(gpu.multiprocessor_bytes // share - gpu.reserved_bytes, gpu.block_bytes)
    return max(needed, most // SHARED_UNIT * SHARED_UNIT)


def even_bytes_of(function: ctypes.c_void_p, launch: Launch) -> int:
    """Shared memory that a loaded kernel asks for when it is launched for one image or row. Raises DeviceError."""
    sizes, size = [], ctypes.c_int()
    for number in _CLUSTER_SIZES:
        call("cuFuncGetAttribute", ctypes.byref(size), number, function)
        sizes.append(max(1, size.value))
    return even_bytes(launch.shared_bytes, prod(launch.grid_at(1)), prod(sizes), SharedMemory.of_current_device())
