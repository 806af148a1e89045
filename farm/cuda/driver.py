"""The CUDA driver API by ctypes, for functions that PyCUDA lacks and for programs without PyCUDA."""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any

from codegen.errors import DeviceError
from farm.errors import UsageError

_POINTER = ctypes.c_void_p
_UNSIGNED = ctypes.c_uint
_INTEGER = ctypes.POINTER(ctypes.c_int)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuStreamBeginCapture_v2": (_POINTER, ctypes.c_int),
    "cuStreamEndCapture": (_POINTER, ctypes.POINTER(_POINTER)),
    "cuGraphInstantiateWithFlags": (ctypes.POINTER(_POINTER), _POINTER, ctypes.c_ulonglong),
    "cuGraphLaunch": (_POINTER, _POINTER),
    "cuGraphExecDestroy": (_POINTER,),
    "cuGraphDestroy": (_POINTER,),
    "cuStreamWaitValue32_v2": (_POINTER, ctypes.c_uint64, ctypes.c_uint32, _UNSIGNED),
    "cuModuleLoadData": (ctypes.POINTER(_POINTER), ctypes.c_char_p),
    "cuModuleUnload": (_POINTER,),
    "cuModuleGetFunction": (ctypes.POINTER(_POINTER), _POINTER, ctypes.c_char_p),
    "cuModuleGetGlobal_v2": (
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.POINTER(ctypes.c_size_t),
        _POINTER,
        ctypes.c_char_p,
    ),
    "cuFuncGetAttribute": (_INTEGER, ctypes.c_int, _POINTER),
    "cuFuncSetAttribute": (_POINTER, ctypes.c_int, ctypes.c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_INTEGER, _POINTER, ctypes.c_int, ctypes.c_size_t),
    "cuLaunchKernel": (_POINTER, *[_UNSIGNED] * 7, _POINTER, _POINTER, _POINTER),
    "cuLaunchKernelEx": (_POINTER, _POINTER, _POINTER, _POINTER),
    "cuInit": (_UNSIGNED,),
    "cuDeviceGetCount": (_INTEGER,),
    "cuDeviceGet": (_INTEGER, ctypes.c_int),
    "cuDeviceGetName": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cuDeviceGetAttribute": (_INTEGER, ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_POINTER), ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuCtxPushCurrent_v2": (_POINTER,),
    "cuCtxPopCurrent_v2": (ctypes.POINTER(_POINTER),),
    "cuCtxGetDevice": (_INTEGER,),
    "cuCtxGetCurrent": (ctypes.POINTER(_POINTER),),
    "cuCtxSetCurrent": (_POINTER,),
    "cuMemAlloc_v2": (ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t),
    "cuMemFree_v2": (ctypes.c_uint64,),
    "cuMemcpyHtoD_v2": (ctypes.c_uint64, _POINTER, ctypes.c_size_t),
    "cuMemcpyDtoH_v2": (_POINTER, ctypes.c_uint64, ctypes.c_size_t),
    "cuStreamCreate": (ctypes.POINTER(_POINTER), _UNSIGNED),
    "cuStreamDestroy_v2": (_POINTER,),
    "cuStreamIsCapturing": (_POINTER, _INTEGER),
    "cuStreamSynchronize": (_POINTER,),
    "cuStreamWaitEvent": (_POINTER, _POINTER, _UNSIGNED),
    "cuEventCreate": (ctypes.POINTER(_POINTER), _UNSIGNED),
    "cuEventRecord": (_POINTER, _POINTER),
    "cuEventDestroy_v2": (_POINTER,),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE numbers of a GPU's version."""
_WAYS_OUT = {
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the driver is older than the code: install a driver of CUDA 13 or later",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the code is for another GPU: compile the model with --arch of this one",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": "the driver lacks libnvidia-ptxjitcompiler: install the complete driver",
}
"""The way out of an error, by its name."""


@lru_cache(maxsize=1)
def driver() -> Any:
    """The driver's library. Raises DeviceError if it cannot be loaded."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the CUDA driver cannot be loaded ({error}): run this on a machine with a GPU") from None


@cache
def function(name: str) -> Any:
    """A function of the driver. Raises DeviceError if the driver is too old to have it."""
    try:
        found = getattr(driver(), name)
    except AttributeError:
        raise DeviceError(f"the CUDA driver has no {name}: install a driver of CUDA 12 or later") from None
    found.argtypes, found.restype = _SIGNATURES[name], ctypes.c_int
    return found


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver. Raises DeviceError if it fails."""
    code = function(name)(*arguments)
    if code:
        said = ctypes.c_char_p()
        function("cuGetErrorName")(code, ctypes.byref(said))
        words = said.value.decode() if said.value else f"error {code}"
        way_out = _WAYS_OUT.get(words)
        raise DeviceError(f"{name} failed ({words}){f': {way_out}' if way_out else ''}")


def new_stream() -> ctypes.c_void_p:
    """A stream in the current context, which does not synchronize with the default stream."""
    stream = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    return stream


def new_event() -> ctypes.c_void_p:
    """An event in the current context, without timing."""
    event = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(event), 2)
    return event


def attribute(number: int, device: int) -> int:
    """A device attribute, by its CU_DEVICE_ATTRIBUTE number."""
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value


def device_handle(number: int) -> int:
    """The driver's handle of a GPU. Raises DeviceError without a GPU, UsageError for a wrong number."""
    call("cuInit", 0)
    count, device = ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    if not count.value:
        raise DeviceError("there is no GPU here: check the driver with nvidia-smi")
    if not 0 <= number < count.value:
        raise UsageError(f"there is no GPU {number}: this machine has GPUs 0 to {count.value - 1}")
    call("cuDeviceGet", ctypes.byref(device), number)
    return device.value


def device_arch(device: int) -> str:
    """The architecture of a GPU, such as sm_90."""
    return f"sm_{attribute(_MAJOR, device)}{attribute(_MINOR, device)}"


def device_name(device: int) -> str:
    """The product name of a GPU."""
    name = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", name, len(name), device)
    return name.value.decode(errors="replace")
