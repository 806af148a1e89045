"""Breakdown of a replay's time, from a profiler's trace: compiled layers, other kernels, and gaps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.cuda.prefetch import KERNEL


@dataclass(frozen=True)
class TracedKernel:
    """A kernel, copy or fill in a replay; times in microseconds on one clock."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class LayerKernels:
    """Kernels of a compiled layer."""

    name: str
    kernels: tuple[str, ...]
    """Entry names, one per launch."""


@dataclass(frozen=True)
class Breakdown:
    """Microseconds of one replay, from the first kernel's begin to the last one's end."""

    total: float
    compiled: float
    """Time in which a kernel of a compiled layer runs."""
    rest: float
    """Time in which only other kernels run."""
    gaps: float
    layers: Mapping[str, float]
    """Time of each layer, from its first kernel's begin to its last one's end; empty if the trace lacks kernels.

    A kernel that begins early waits for the layer before it: that time is not counted again.
    """

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "total_microseconds": round(self.total, 3),
            "compiled": round(self.compiled / self.total, 4),
            "rest": round(self.rest / self.total, 4),
            "gaps": round(self.gaps / self.total, 4),
            "layer_microseconds": {name: round(value, 3) for name, value in self.layers.items()},
        }


def read_trace(text: str) -> list[TracedKernel]:
    """GPU activities of a profiler's file, sorted by begin, without the prefetches of code."""
    found = [
        TracedKernel(event["name"], float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in json.loads(text)["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        if event["name"] != KERNEL
    ]
    return sorted(found, key=lambda each: each.start)


def breakdown(spans: Sequence[TracedKernel], layers: Sequence[LayerKernels]) -> Breakdown | None:
    """Breakdown of one replay; None without kernels.

    Layers are given in execution order. Overlapping kernels count once.
    """
    if not spans:
        return None
    ordered = sorted(spans, key=lambda each: each.start)
    names = {kernel for layer in layers for kernel in layer.kernels}
    own = [each for each in ordered if each.name in names]
    total = max(each.end for each in ordered) - ordered[0].start
    compiled = _covered(own)
    busy = _covered(ordered)
    return Breakdown(total, compiled, busy - compiled, total - busy, _by_layer(own, layers))


def median_of(found: Iterable[Breakdown | None]) -> Breakdown | None:
    """Breakdown of the replay with the median length; None if there is none."""
    known = sorted((each for each in found if each is not None), key=lambda each: each.total)
    return known[len(known) // 2] if known else None


def _covered(spans: Sequence[TracedKernel]) -> float:
    """Length of the union of spans sorted by begin."""
    covered, end = 0.0, float("-inf")
    for each in spans:
        covered += max(0.0, each.end - max(each.start, end))
        end = max(end, each.end)
    return covered


def _by_layer(own: Sequence[TracedKernel], layers: Sequence[LayerKernels]) -> dict[str, float]:
    if len(own) != sum(len(layer.kernels) for layer in layers):
        return {}
    found, first, ended = {}, 0, float("-inf")
    for layer in layers:
        of_layer = own[first : first + len(layer.kernels)]
        first += len(of_layer)
        if sorted(each.name for each in of_layer) != sorted(layer.kernels):
            return {}
        begun, ended = max(ended, of_layer[0].start), max(each.end for each in of_layer)
        found[layer.name] = ended - begun
    return found
