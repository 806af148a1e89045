"""What ran on a GPU while PyTorch's profiler watched."""

from __future__ import annotations

import json
from dataclasses import dataclass

from farm.cuda.prefetch import KERNEL


@dataclass(frozen=True)
class TracedKernel:
    """A kernel, a copy or a fill in a replay; times in microseconds on one clock."""

    name: str
    start: float
    end: float


def read_trace(text: str) -> list[TracedKernel]:
    """What ran on the GPU, from the profiler's file, in the order of its beginning.

    What ran on the side, to fetch code of layers to come, is left out.
    """
    found = [
        TracedKernel(event["name"], float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in json.loads(text)["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        if event["name"] != KERNEL
    ]
    return sorted(found, key=lambda each: each.start)
