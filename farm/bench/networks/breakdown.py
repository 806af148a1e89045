"""Where the time of a replayed network goes: compiled layers, the rest, gaps in which nothing runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Span(Protocol):
    """Something that ran on a GPU; in microseconds on one clock."""

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


@dataclass(frozen=True)
class LayerKernels:
    """What a compiled layer launches."""

    name: str
    kernels: tuple[str, ...]
    """By their entries' names, one for each launch."""


@dataclass(frozen=True)
class Breakdown:
    """Microseconds of one replay, from its first kernel's beginning to its last one's end."""

    total: float
    compiled: float
    """While a kernel of a compiled layer runs."""
    rest: float
    """While other kernels run, and none of those."""
    gaps: float
    layers: Mapping[str, float]
    """From the beginning of each layer's first kernel to the end of its last; empty where the trace has not as many
    kernels as the layers launch."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "total_microseconds": round(self.total, 3),
            "compiled": round(self.compiled / self.total, 4),
            "rest": round(self.rest / self.total, 4),
            "gaps": round(self.gaps / self.total, 4),
            "layer_microseconds": {name: round(value, 3) for name, value in self.layers.items()},
        }


def breakdown(spans: Sequence[Span], layers: Sequence[LayerKernels]) -> Breakdown | None:
    """Of one replay; the layers in the order in which they run, one after another. None for a replay without kernels.

    Kernels of the same layer may overlap: time in which two run counts once.
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
    """That of the median replay, by its length; None where there is none."""
    known = sorted((each for each in found if each is not None), key=lambda each: each.total)
    return known[len(known) // 2] if known else None


def _covered(spans: Sequence[Span]) -> float:
    """Length of the union; the spans by their beginning."""
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
