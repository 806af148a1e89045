"""What a network of the sparse DNN challenge takes, as one CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from farm.cuda.graph import cool_down, replays_within

REPLAYED_SECONDS = 0.5
"""That a variant is replayed for, about: a deep network by cuSPARSE takes a tenth of a second."""
WARM_SECONDS = 0.3


def replayed(stream: torch.cuda.Stream, enqueue: Callable[[], None]) -> float:
    """The median of single replays in microseconds; `stream` is the current one."""
    enqueue()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        enqueue()
    begun, warmed = time.monotonic(), 0
    while time.monotonic() - begun < WARM_SECONDS:
        graph.replay()
        stream.synchronize()
        warmed += 1
    times = []
    for _ in range(replays_within(REPLAYED_SECONDS, (time.monotonic() - begun) / warmed)):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(stream)
        graph.replay()
        end.record(stream)
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) * 1e3)
        cool_down(times[-1])
    return float(np.median(times))
