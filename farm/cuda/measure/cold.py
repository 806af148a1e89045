"""The time of a launch as in a network, where other layers' code and data have been there since the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farm.cuda.device import Device
from farm.cuda.graph import REPLAYS, CudaGraph, cool_down

COLD_LAUNCHES = 16
"""In a graph."""


def cold_microseconds(
    device: Device, launch: Callable[[], None], others: Callable[[], None], stream: Any, repeats: int = REPLAYS
) -> float:
    """Median time of one launch on `stream`: a graph that has `others` before each, less what those take alone.

    Raises DeviceError.
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
