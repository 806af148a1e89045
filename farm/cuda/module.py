"""Modules and kernels loaded into the current context of a GPU, through the driver API."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from codegen.errors import DeviceError
from codegen.ir.launch import MOST_IMAGES, Launch
from farm.cuda.code_address import VARIABLE, with_address
from farm.cuda.driver import call
from farm.cuda.even_blocks import even_bytes_of

SLOT_BYTES = 8
"""Size of a kernel argument."""
GIVEN_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory that every block may use; for more, an attribute of the kernel must be set."""
_MOST_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


class Module:
    """A loaded module: a cubin, or PTX that the driver compiles. Unloaded with its context at the latest."""

    def __init__(self, image: bytes) -> None:
        """Load an image into the current context. Raises DeviceError."""
        self._module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._module), image)

    def function(self, name: str) -> ctypes.c_void_p:
        """A kernel by name. Raises DeviceError if there is none of that name."""
        function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        return function

    def variable(self, name: str) -> int:
        """The value of a variable of 8 bytes. Raises DeviceError if there is none of that name."""
        address, size, value = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64()
        call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), self._module, name.encode())
        call("cuMemcpyDtoH_v2", ctypes.byref(value), address, ctypes.sizeof(value))
        return value.value

    def unload(self) -> None:
        """Unload the module, of which no kernel may be running."""
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


def allow_shared(function: ctypes.c_void_p, shared_bytes: int) -> None:
    """Allow a kernel's blocks a size of dynamic shared memory. Raises DeviceError."""
    if shared_bytes > GIVEN_SHARED_BYTES:
        call("cuFuncSetAttribute", function, _MOST_SHARED, shared_bytes)


def check_resident(
    function: ctypes.c_void_p, grid: Sequence[int], threads: int, shared_bytes: int, multiprocessors: int
) -> None:
    """Raises DeviceError unless all blocks of a grid run at once: blocks may wait forever for one that never starts."""
    occupancy, blocks = ctypes.c_int(), prod(grid)
    call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(occupancy), function, threads, shared_bytes)
    if blocks > (fit := multiprocessors * occupancy.value):
        raise DeviceError(
            f"{blocks} blocks wait for each other and {fit} run at once on this GPU's {multiprocessors} "
            "multiprocessors: use a larger GPU"
        )


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
    """Enqueue a kernel with arguments of ctypes types. Raises DeviceError.

    `overlapping` (programmatic dependent launch, sm_90 and later) lets it start before its predecessor has ended: the
    kernel must wait itself.
    """
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
    if not overlapping:
        call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, pointers, None)
        return
    _overlapping(function, grid, block, shared_bytes, pointers, stream)


def _overlapping(
    function: ctypes.c_void_p,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    pointers: ctypes.Array[ctypes.c_void_p],
    stream: int,
) -> None:
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
    *,
    overlapping: bool = False,
) -> None:
    """Enqueue a kernel whose arguments are addresses and int32 values, in half the time of `launch`.

    Raises DeviceError.
    """
    count = len(arguments)
    slots = (ctypes.c_uint64 * count)(*arguments)  # little-endian: an int32 is the first half of a slot
    first = ctypes.addressof(slots)
    pointers = (ctypes.c_void_p * count)(*range(first, first + SLOT_BYTES * count, SLOT_BYTES))
    if overlapping:
        _overlapping(function, grid, block, shared_bytes, pointers, stream)
        return
    call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, pointers, None)


@dataclass(frozen=True)
class CodeRange:
    """Address and size of a kernel's instructions in the GPU's memory."""

    address: int
    bytes: int


class LoadedPart:
    """One part of a layer, loaded on one GPU."""

    def __init__(self, image: bytes, how: Launch, most_rows: int = MOST_IMAGES) -> None:
        """Load a cubin or PTX into the current context. Raises DeviceError."""
        self.launch = how
        self.most_rows = most_rows
        """Largest number of images or rows that it is meant for."""
        self.image_bytes = len(image)
        self.module, self.code = _loaded(image)
        """`code` is None for PTX, and if the driver does not report the address."""
        self._function = self.module.function(how.kernel)
        self._bytes_of_one = even_bytes_of(self._function, how) if how.waits else how.shared_bytes
        """Shared memory of a block in a launch for one image or row."""
        allow_shared(self._function, self._bytes_of_one)
        self._last_grid = 0, how.grid_at(0)
        """Number of images and grid of the last call, because the next call usually has as many images."""

    def enqueue(self, values: Mapping[str, int], stream: int) -> None:
        """Enqueue the kernel with addresses and numbers by name. Raises DeviceError."""
        how = self.launch
        images, grid = self._last_grid
        if images != values["images"]:
            images, grid = self._last_grid = values["images"], how.grid_at(values["images"])
        numbers = [values[name] for name in how.arguments]
        shared_bytes = self._bytes_of_one if images == 1 else how.shared_bytes
        launch_numbers(self._function, grid, how.block, shared_bytes, numbers, stream, overlapping=how.waits)


def _loaded(image: bytes) -> tuple[Module, CodeRange | None]:
    found = with_address(image)
    if found is None:
        return Module(image), None
    try:
        module = Module(found[0])
    except DeviceError:  # if the variable is not the cause, the next line fails too
        return Module(image), None
    address = module.variable(VARIABLE)
    return module, CodeRange(address, found[1]) if address else None
