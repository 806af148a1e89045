"""CUDA graphs of recorded launches, which PyCUDA lacks, and their timing."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np
from numpy.typing import NDArray

from farm.cuda.driver import call, function

REPLAYS, LEAST_REPLAYS = 9, 3
"""Number of timed replays, whose median is the result, and the least number if a replay takes long."""
REPLAY_MICROSECONDS = 4000.0
"""Approximate time of a graph, long against the resolution of an event of half a microsecond."""
COOL_DOWN_RATIO = 2.0
"""Idle time after a replay per time of the replay.

Some kernels draw more power than the board allows for longer than 50 ms; without the pause, its clock would drop for
them and for the following kernels.
"""
MOST_LAUNCHES = 40
"""Most launches in a graph, unless more data sets than that must be used equally often."""

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: driver calls of other threads do not invalidate the capture."""
_EQUAL = 1
"""CU_STREAM_WAIT_VALUE_EQ."""


def launches_of(microseconds: float, sets: int) -> int:
    """Number of launches of a given time in a graph, a multiple of the number of data sets."""
    wanted = min(MOST_LAUNCHES, REPLAY_MICROSECONDS / microseconds)
    return sets * max(1, math.ceil(wanted / sets))


def replays_within(seconds: float, replay_seconds: float) -> int:
    """Number of replays with pauses that fit into a time, between LEAST_REPLAYS and REPLAYS."""
    return max(LEAST_REPLAYS, min(REPLAYS, int(seconds / ((1 + COOL_DOWN_RATIO) * replay_seconds))))


def cool_down(microseconds: float) -> None:
    """Keep the GPU idle after a replay of the given time."""
    time.sleep(COOL_DOWN_RATIO * microseconds / 1e6)


class CudaGraph:
    """A CUDA graph of the work that a function enqueues. Use it in a `with` block. Raises DeviceError."""

    def __init__(self, stream: int, enqueue: Callable[[], None]) -> None:
        """Record without running; `stream` is a handle of the driver, not the default stream."""
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

    def __exit__(self, *_error: object) -> None:
        if self._executable:
            function("cuGraphExecDestroy")(self._executable)
            self._executable = ctypes.c_void_p()

    def replay(self) -> None:
        """Enqueue the recorded work; does not wait."""
        call("cuGraphLaunch", self._executable, self._stream)


class Gate:
    """Blocks a stream until all work to be timed is enqueued.

    Without it, a delay of this thread between an event and the next launch, for example by threads that build kernels,
    would be counted as time of the GPU.
    """

    def __init__(self, stream: int, flag: NDArray[np.uint32], address: int) -> None:
        """`flag` is an array of one element in page-locked memory, which the GPU reads at `address`."""
        self._stream = stream
        self._flag = flag
        self._address = address

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Block the stream while the `with` block enqueues work; it must not wait for the GPU. Raises DeviceError."""
        self._flag[0] = 0
        call("cuStreamWaitValue32_v2", self._stream, self._address, 1, _EQUAL)
        try:
            yield
        finally:
            self._flag[0] = 1


def _destroy(graph: ctypes.c_void_p) -> None:
    """Destroy a graph; a failed capture leaves none."""
    if graph:
        function("cuGraphDestroy")(graph)
