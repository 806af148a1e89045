"""Kernels loaded into the current context of a GPU, by the driver alone."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from codegen.launch import Launch
from farm.gpu.driver import call

WARP = 32
SLOT_BYTES = 8
"""Of an argument."""


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


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16))


class _Configuration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_OVERLAP = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""


def launch(
    function: ctypes.c_void_p,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    arguments: Sequence[Any],
    stream: int,
    *,
    overlapping: bool = False,
) -> None:
    """Enqueues a kernel; the arguments are ctypes' numbers. Raises DeviceError.

    An overlapping one begins before the kernel ahead of it has ended, from sm_90 on: it must wait itself.
    """
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
    if not overlapping:
        call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, pointers, None)
        return
    attribute = _Attribute(id=_OVERLAP, value=(ctypes.c_int * 16)(1))
    how = _Configuration((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared_bytes, stream)
    how.attributes, how.count = ctypes.pointer(attribute), 1
    call("cuLaunchKernelEx", ctypes.byref(how), function, pointers, None)


def launch_numbers(
    function: ctypes.c_void_p,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    arguments: Sequence[int],
    stream: int,
) -> None:
    """As `launch`, of addresses and int32s: in half the time, while the GPU waits. Raises DeviceError."""
    count = len(arguments)
    slots = (ctypes.c_uint64 * count)(*arguments)  # an int32 is the first half of one
    first = ctypes.addressof(slots)
    pointers = (ctypes.c_void_p * count)(*range(first, first + SLOT_BYTES * count, SLOT_BYTES))
    call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, pointers, None)


class Part:
    """One kernel of a layer on one GPU."""

    def __init__(self, image: bytes, how: Launch) -> None:
        """Loads it into the current context. Raises DeviceError."""
        self.launch = how
        self.code_bytes = len(image)
        self.module = Module(image)
        self._function = self.module.function(how.kernel)
        self._last_grid = 0, how.grid_at(0)
        """And of how many images: the next call has as many, as a rule."""

    def enqueue(self, values: Mapping[str, int], stream: int) -> None:
        """Each argument is an address or a number. Raises DeviceError."""
        how = self.launch
        images, grid = self._last_grid
        if images != values["images"]:
            images, grid = self._last_grid = values["images"], how.grid_at(values["images"])
        launch_numbers(
            self._function, grid, how.block, how.shared_bytes, [values[name] for name in how.arguments], stream
        )

    def run_through(self, scratch: int, stream: int) -> None:
        """One warp of a block of each K group runs the code, on no images, so that it is in the L2 cache.

        What it writes is nonsense and goes to `scratch`, memory of the size of one image of input and output.
        """
        how = self.launch
        values = {**dict.fromkeys(how.arguments, scratch), **how.numbers(0)}
        launch_numbers(
            self._function,
            (1, 1, how.grid_at(1)[2]),
            (min(WARP, prod(how.block)), 1, 1),
            how.shared_bytes,
            [values[name] for name in how.arguments],
            stream,
        )
