"""The time of a launch that finds neither its code nor its data in a cache, as between the layers of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farm.gpu.device import Device
from farm.gpu.replay import REPLAYS, CudaGraph, rest

FLUSHED_CACHES = 2
"""So many times the size of the L2 cache is written before each launch."""
COLD_LAUNCHES = 20
"""In a graph."""


def cold_microseconds(device: Device, launch: Callable[[], None], stream: Any, repeats: int = REPLAYS) -> float:
    """Median time of one launch on `stream`: a graph that flushes the L2 cache before each, less what flushing takes.

    Raises DeviceError.
    """
    flush_bytes = FLUSHED_CACHES * device.facts.l2_bytes
    memory = device.allocate(flush_bytes)

    def flush() -> None:
        device.fill(int(memory), flush_bytes, stream)

    def flush_and_launch() -> None:
        flush()
        launch()

    device.wake()
    try:
        launch()
        stream.synchronize()
        gate = device.gate(stream)
        with (
            CudaGraph(stream.handle, lambda: _repeat(flush)) as without,
            CudaGraph(stream.handle, lambda: _repeat(flush_and_launch)) as with_launches,
        ):
            without.replay()
            with_launches.replay()
            differences = []
            for _ in range(repeats):
                alone = device.elapsed_microseconds(stream, gate, without.replay)
                both = device.elapsed_microseconds(stream, gate, with_launches.replay)
                rest(both)
                differences.append((both - alone) / COLD_LAUNCHES)
    finally:
        memory.free()
    return float(np.median(differences))


def _repeat(enqueue: Callable[[], None]) -> None:
    for _ in range(COLD_LAUNCHES):
        enqueue()
