"""Summaries of network measurements: best dense time per precision, and speed-ups over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farm.bench.layers.contenders import GENERATED
from farm.bench.layers.results import Measurement, Results, cases_of
from farm.cuda.measure.workload import CaseKey


@dataclass(frozen=True)
class NetworkRow:
    """One network at one batch size."""

    case: CaseKey
    own: Measurement | None
    """The compiled network's measurement; None if missing."""
    dense: dict[str, Measurement]
    """Fastest dense measurement per precision; precisions without a time are absent."""

    def speedup(self, precision: str) -> float | None:
        """Speed-up over the fastest dense network of a precision; None without both times."""
        other = self.dense.get(precision)
        if self.own is None or not self.own.microseconds or other is None or not other.microseconds:
            return None
        return other.microseconds / self.own.microseconds

    @property
    def breakdown(self) -> dict[str, Any]:
        """Breakdown of the compiled network's time; empty if unknown."""
        found: dict[str, Any] = self.own.facts.get("breakdown", {}) if self.own else {}
        return found


def network_rows(results: Results) -> list[NetworkRow]:
    """A row per case, in the order of the measurements."""
    own = results.of(GENERATED)
    return [NetworkRow(case, own.get(case), _dense(results, case)) for case in cases_of(results.measurements)]


def mode_and_precision(contender: str) -> tuple[str, str]:
    """Mode and precision of a dense network, such as (compile, tf32)."""
    mode, _, precision = contender.rpartition("-")
    return mode, precision


def _dense(results: Results, case: CaseKey) -> dict[str, Measurement]:
    found: dict[str, Measurement] = {}
    for each in results.measurements:
        if each.case != case or each.contender == GENERATED or not each.microseconds:
            continue
        _, precision = mode_and_precision(each.contender)
        best = found.get(precision)
        if best is None or not best.microseconds or each.microseconds < best.microseconds:
            found[precision] = each
    return found
