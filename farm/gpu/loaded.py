"""Kernels loaded into the current context of a GPU, by the driver alone."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from codegen.launch import Launch
from farm.gpu.driver import call


class Module:
    """Machine code, or PTX that the driver compiles; unloaded with the context."""

    def __init__(self, image: bytes) -> None:
        """Loads it into the current context. Raises DeviceError."""
        self._module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._module), image)

    def function(self, name: str) -> ctypes.c_void_p:
        """Raises DeviceError if it has none of that name."""
        function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        return function

    def unload(self) -> None:
        """Nothing of it may run any more."""
        call("cuModuleUnload", self._module)


def launch(
    function: ctypes.c_void_p,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    arguments: Sequence[Any],
    stream: int,
) -> None:
    """Enqueues a kernel; the arguments are ctypes' numbers. Raises DeviceError."""
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
    call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, pointers, None)


class Part:
    """One kernel of a layer on one GPU."""

    def __init__(self, image: bytes, how: Launch) -> None:
        """Loads it into the current context. Raises DeviceError."""
        self.launch = how
        self.module = Module(image)
        self._function = self.module.function(how.kernel)

    def enqueue(self, addresses: Mapping[str, int], numbers: Mapping[str, int], stream: int) -> None:
        """Each argument is an address or a number. Raises DeviceError."""
        how = self.launch
        values = [
            ctypes.c_int32(numbers[name]) if name in numbers else ctypes.c_uint64(addresses[name])
            for name in how.arguments
        ]
        launch(self._function, how.grid_at(numbers["images"]), how.block, how.shared_bytes, values, stream)
