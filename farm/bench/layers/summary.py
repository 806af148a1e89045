"""Summaries of measurements: speed-ups, geometric means, shares of the roof, break-even sparsities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from farm.bench.layers.contenders import GENERATED, PEERS
from farm.bench.layers.results import Measurement, Results
from farm.cuda.measure.workload import CaseKey


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive values. Raises ValueError for an empty sequence."""
    logarithms = [math.log(value) for value in values]
    if not logarithms:
        raise ValueError("the mean of nothing")
    return math.exp(math.fsum(logarithms) / len(logarithms))


def speedups(results: Results, peer: str) -> dict[CaseKey, float]:
    """Speed-up over the peer (its time / ours) by case; cases that lack one of the two times are absent."""
    own, others = results.of(GENERATED), results.of(peer)
    found = {}
    for case, other in others.items():
        mine = own.get(case)
        if mine is not None and mine.microseconds and other.microseconds:
            found[case] = other.microseconds / mine.microseconds
    return found


@dataclass(frozen=True)
class PeerSummary:
    """One peer over all operators of one batch, sparsity and data type."""

    peer: str
    batch: int
    sparsity: float
    data_type: str
    mean: float
    """Geometric mean of the speed-ups."""
    least: float
    least_operator: str
    operators: int


def summarise(results: Results) -> list[PeerSummary]:
    """Geometric mean and worst of each peer that was measured at all, by data type, batch and sparsity."""
    rows = []
    for peer in PEERS:
        found = speedups(results, peer)

        def group(case: CaseKey) -> tuple[str, int, float]:
            return case.data_type, -case.batch, case.sparsity

        for (data_type, batch, sparsity), cases in groupby(sorted(found, key=group), key=group):
            ratios = {case.operator: found[case] for case in cases}
            worst = min(ratios, key=lambda name: ratios[name])
            mean = geometric_mean(ratios.values())
            rows.append(PeerSummary(peer, -batch, sparsity, data_type, mean, ratios[worst], worst, len(ratios)))
    return rows


@dataclass(frozen=True)
class BreakEven:
    """Sparsity from which a generated kernel is faster than a peer."""

    sparsity: float | None
    """None if it is slower even at the largest measured sparsity."""
    measured_to: float
    at_or_under: bool = False
    """Whether it is faster at every measured sparsity, so that the break-even may be lower."""

    def __str__(self) -> str:
        if self.sparsity is None:
            return f"above {self.measured_to:g}"
        return f"at or under {self.sparsity:g}" if self.at_or_under else f"{self.sparsity:.2f}"


def break_even(ratios: Mapping[float, float]) -> BreakEven:
    """Sparsity from which all speed-ups are at least 1; `ratios` are speed-ups by sparsity.

    The logarithm of the speed-up is interpolated linearly. Raises ValueError for no ratios.
    """
    if not ratios:
        raise ValueError("a break-even of nothing")
    points = sorted(ratios.items())
    first, last = points[0][0], points[-1][0]
    if points[-1][1] < 1:
        return BreakEven(None, last)
    crossing = first
    found = False
    for (low, slower), (high, faster) in pairwise(points):
        if slower < 1 <= faster:
            share = -math.log(slower) / (math.log(faster) - math.log(slower))
            crossing, found = low + share * (high - low), True
    return BreakEven(crossing, last, at_or_under=not found)


def break_evens(results: Results, peers: Sequence[str]) -> dict[tuple[str, int, str], dict[str, BreakEven]]:
    """Break-even against each peer, by operator, batch and data type, where several sparsities were measured."""
    ratios: dict[tuple[str, int, str], dict[str, dict[float, float]]] = {}
    for peer in peers:
        for case, ratio in speedups(results, peer).items():
            layer = (case.operator, case.batch, case.data_type)
            ratios.setdefault(layer, {}).setdefault(peer, {})[case.sparsity] = ratio
    return {
        layer: several
        for layer, by_peer in ratios.items()
        if (several := {peer: break_even(points) for peer, points in by_peer.items() if len(points) > 1})
    }


def roof_share(measurement: Measurement) -> float | None:
    """Share of the roofline bound that a kernel reaches; 1 is the bound."""
    if not measurement.microseconds or measurement.roof_microseconds is None:
        return None
    return measurement.roof_microseconds / measurement.microseconds


def missing(results: Results) -> dict[tuple[str, str], list[CaseKey]]:
    """Cases without a time, by contender and reason."""
    found: dict[tuple[str, str], list[CaseKey]] = {}
    for each in results.measurements:
        if each.microseconds is None:
            found.setdefault((each.contender, each.reason), []).append(each.case)
    return found
