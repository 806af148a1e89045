"""Launches recorded once and replayed as a CUDA graph: PyCUDA has none, so the driver is called by ctypes."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from codegen.errors import DeviceError

REPLAYS = 9
"""Number of replays; their median is taken."""
REPLAY_MICROSECONDS = 4000.0
"""Approximate work per graph: long enough that an event's half microsecond does not matter."""
RESTS = 2.0
"""Times its own length that the GPU rests after each replay: some kernels draw more power than the board may for longer
than 50 ms, and its clock would fall for them and for what comes after them."""
MOST_LAUNCHES = 40
"""In a graph, unless every data set takes more."""

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: what other threads do with the driver meanwhile does not end the capture."""
_EQUAL = 1
"""CU_STREAM_WAIT_VALUE_EQ."""
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuStreamBeginCapture_v2": (ctypes.c_void_p, ctypes.c_int),
    "cuStreamEndCapture": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    "cuGraphInstantiateWithFlags": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_ulonglong),
    "cuGraphLaunch": (ctypes.c_void_p, ctypes.c_void_p),
    "cuGraphExecDestroy": (ctypes.c_void_p,),
    "cuGraphDestroy": (ctypes.c_void_p,),
    "cuStreamWaitValue32_v2": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}


def launches_of(microseconds: float, sets: int) -> int:
    """How many launches of about that time a graph has: each data set equally often."""
    wanted = min(MOST_LAUNCHES, REPLAY_MICROSECONDS / microseconds)
    return sets * max(1, math.ceil(wanted / sets))


def rest(microseconds: float) -> None:
    """Leaves the GPU idle after a replay of that length."""
    time.sleep(RESTS * microseconds / 1e6)


class CudaGraph:
    """What a function enqueues on a stream, recorded once. Use it in a `with` block. Raises DeviceError."""

    def __init__(self, stream: int, enqueue: Callable[[], None]) -> None:
        """Records without running anything; `stream` is a handle of the driver's, not the default stream."""
        self._stream = stream
        self._executable = ctypes.c_void_p()
        graph = ctypes.c_void_p()
        _call("cuStreamBeginCapture_v2", stream, _RELAXED)
        try:
            enqueue()
        except BaseException:
            _driver().cuStreamEndCapture(stream, ctypes.byref(graph))
            _destroy(graph)
            raise
        _call("cuStreamEndCapture", stream, ctypes.byref(graph))
        try:
            _call("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), graph, 0)
        finally:
            _destroy(graph)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executable:
            _driver().cuGraphExecDestroy(self._executable)
            self._executable = ctypes.c_void_p()

    def replay(self) -> None:
        """Enqueues it all again; does not wait."""
        _call("cuGraphLaunch", self._executable, self._stream)


class Gate:
    """Holds a stream back until all that is to be timed is in it.

    Else what delays this thread between an event and the launch after it, such as the threads that build the next
    kernels, is timed as if the GPU had worked.
    """

    def __init__(self, stream: int, flag: NDArray[np.uint32], address: int) -> None:
        """`flag` is one number in page-locked memory, which the GPU reads at `address`."""
        self._stream = stream
        self._flag = flag
        self._address = address

    @contextmanager
    def closed(self) -> Iterator[None]:
        """What is enqueued within begins to run after it; nothing within may wait for the GPU. Raises DeviceError."""
        self._flag[0] = 0
        _call("cuStreamWaitValue32_v2", self._stream, self._address, 1, _EQUAL)
        try:
            yield
        finally:
            self._flag[0] = 1


def _destroy(graph: ctypes.c_void_p) -> None:
    """A capture that failed has given none."""
    if graph:
        _driver().cuGraphDestroy(graph)


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the CUDA driver cannot be loaded ({error}): run this on a machine with a GPU") from None
    for name, arguments in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise DeviceError(f"the CUDA driver has no {name}: install one of CUDA 12 or later") from None
        function.argtypes, function.restype = arguments, ctypes.c_int
    return library


def _call(name: str, *arguments: Any) -> None:
    driver = _driver()
    code = getattr(driver, name)(*arguments)
    if code:
        said = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(said))
        words = said.value.decode() if said.value else f"error {code}"
        raise DeviceError(f"{name} failed ({words}): the GPU cannot be timed by replaying a CUDA graph")
