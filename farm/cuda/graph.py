"""Launches recorded once and replayed as a CUDA graph: PyCUDA has none of those."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from farm.cuda.driver import call, function

REPLAYS, LEAST_REPLAYS = 9, 3
"""Number of replays; their median is taken. The least where each takes long."""
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


def launches_of(microseconds: float, sets: int) -> int:
    """How many launches of about that time a graph has: each data set equally often."""
    wanted = min(MOST_LAUNCHES, REPLAY_MICROSECONDS / microseconds)
    return sets * max(1, math.ceil(wanted / sets))


def replays_within(seconds: float, replay_seconds: float) -> int:
    """How many replays fit that time, rests included, but at least LEAST_REPLAYS and at most REPLAYS."""
    return max(LEAST_REPLAYS, min(REPLAYS, int(seconds / ((1 + RESTS) * replay_seconds))))


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
        call("cuStreamBeginCapture_v2", stream, _RELAXED)
        try:
            enqueue()
        except BaseException:
            function("cuStreamEndCapture")(stream, ctypes.byref(graph))
            _destroy(graph)
            raise
        call("cuStreamEndCapture", stream, ctypes.byref(graph))
        try:
            call("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), graph, 0)
        finally:
            _destroy(graph)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executable:
            function("cuGraphExecDestroy")(self._executable)
            self._executable = ctypes.c_void_p()

    def replay(self) -> None:
        """Enqueues it all again; does not wait."""
        call("cuGraphLaunch", self._executable, self._stream)


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
        call("cuStreamWaitValue32_v2", self._stream, self._address, 1, _EQUAL)
        try:
            yield
        finally:
            self._flag[0] = 1


def _destroy(graph: ctypes.c_void_p) -> None:
    """A capture that failed has given none."""
    if graph:
        function("cuGraphDestroy")(graph)
