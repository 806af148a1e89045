"""Breakdown of a replay's time: compiled layers, other kernels, and gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Span(Protocol):
    """An activity on the GPU, in microseconds on one clock."""

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


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
    """Time of each layer, from its first kernel's begin to its last one's end; empty if the trace lacks kernels."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "total_microseconds": round(self.total, 3),
            "compiled": round(self.compiled / self.total, 4),
            "rest": round(self.rest / self.total, 4),
            "gaps": round(self.gaps / self.total, 4),
            "layer_microseconds": {name: round(value, 3) for name, value in self.layers.items()},
        }


def breakdown(spans: Sequence[Span], layers: Sequence[LayerKernels]) -> Breakdown | None:
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


def _covered(spans: Sequence[Span]) -> float:
    """Length of the union of spans sorted by begin."""
    covered, end = 0.0, float("-inf")
    for each in spans:
        covered += max(0.0, each.end - max(each.start, end))
        end = max(end, each.end)
    return covered


def _by_layer(own: Sequence[Span], layers: Sequence[LayerKernels]) -> dict[str, float]:
    if len(own) != sum(len(layer.kernels) for layer in layers):
        return {}
    found, first = {}, 0
    for layer in layers:
        of_layer = own[first : first + len(layer.kernels)]
        first += len(of_layer)
        if sorted(each.name for each in of_layer) != sorted(layer.kernels):
            return {}
        found[layer.name] = max(each.end for each in of_layer) - of_layer[0].start
    return found
