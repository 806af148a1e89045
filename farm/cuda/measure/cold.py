"""Cold timing: the time of a launch with caches full of other layers' code and data, as in a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farm.cuda.device import Device
from farm.cuda.graph import REPLAYS, CudaGraph, cool_down

COLD_LAUNCHES = 16
"""Launches in a graph."""


def cold_microseconds(
    device: Device, launch: Callable[[], None], others: Callable[[], None], stream: Any, repeats: int = REPLAYS
) -> float:
    """Median time of one launch on `stream` after `others`, which evicts the caches.

    It is the difference between a graph of both and a graph of `others` alone, per launch. Raises DeviceError.
    """

    def others_and_launch() -> None:
        others()
        launch()

    device.wake()
    launch()
    others()
    stream.synchronize()
    gate = device.gate(stream)
    with (
        CudaGraph(stream.handle, lambda: _repeat(others)) as without,
        CudaGraph(stream.handle, lambda: _repeat(others_and_launch)) as with_launches,
    ):
        without.replay()
        with_launches.replay()
        differences = []
        for _ in range(repeats):
            alone = device.elapsed_microseconds(stream, gate, without.replay)
            both = device.elapsed_microseconds(stream, gate, with_launches.replay)
            cool_down(both)
            differences.append((both - alone) / COLD_LAUNCHES)
    return float(np.median(differences))


def _repeat(enqueue: Callable[[], None]) -> None:
    for _ in range(COLD_LAUNCHES):
        enqueue()
