"""Traces of PyTorch's profiler."""

from __future__ import annotations

import json
from dataclasses import dataclass

from farm.cuda.prefetch import KERNEL


@dataclass(frozen=True)
class TracedKernel:
    """A kernel, copy or fill in a replay; times in microseconds on one clock."""

    name: str
    start: float
    end: float


def read_trace(text: str) -> list[TracedKernel]:
    """GPU activities of a profiler's file, sorted by begin, without the prefetches of code."""
    found = [
        TracedKernel(event["name"], float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in json.loads(text)["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        if event["name"] != KERNEL
    ]
    return sorted(found, key=lambda each: each.start)
