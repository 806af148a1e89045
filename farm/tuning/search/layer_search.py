"""Search of one layer: candidates in the cost model's order, built while others are measured, until time is up.

Tilings similar to the fastest so far come first: the model predicts blocks and K groups better than chunks and stages.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.errors import DeviceError
from codegen.ir.tiling import Tiling
from farm.cuda.measure.kernels import BuiltLayer, NotBuiltError
from farm.cuda.measure.workload import Case
from farm.tuning.search.building import Building
from farm.tuning.search.check import OutputCheck
from farm.tuning.search.rig import Bench, Rig, Times

FINALISTS = 4
"""Fastest candidates, measured again in turn if they are close: clocks change during a search."""
CLOSE = 1.1
"""Largest ratio to the fastest of a close candidate."""
ROUNDS = 2


@dataclass(frozen=True, eq=False)
class Candidate:
    """A tiling with correct kernels, and their time."""

    tiling: Tiling
    built: BuiltLayer
    cold_microseconds: float


@dataclass(frozen=True, eq=False)
class Winner:
    """The chosen tiling with both times."""

    tiling: Tiling
    built: BuiltLayer
    times: Times


@dataclass(frozen=True)
class Measured:
    """Facts of a candidate, without its kernels."""

    tiling: Tiling
    cold_microseconds: float
    parts: int
    registers: int
    cubin_bytes: int

    @staticmethod
    def of(candidate: Candidate) -> Measured:
        facts = candidate.built.facts
        parts, registers, size = (int(facts.get(name, 0)) for name in ("parts", "registers", "cubin_bytes"))
        return Measured(candidate.tiling, candidate.cold_microseconds, parts, registers, size)

    def to_json(self) -> dict[str, Any]:
        return {
            "tiling": self.tiling.to_json(),
            "parts": self.parts,
            "registers": self.registers,
            "cubin_bytes": self.cubin_bytes,
            "cold_microseconds": round(self.cold_microseconds, 3),
        }


@dataclass(frozen=True, eq=False)
class Found:
    """Result of a search."""

    best: Winner | None
    model: Winner | None
    """The cost model's first choice; None if it did not build or is wrong."""
    tried: int = 0
    """Kernels measured."""
    measured: tuple[Measured, ...] = ()
    """Correct candidates, in the order of measurement."""
    not_built: int = 0
    wrong: tuple[str, ...] = ()
    """Tilings with wrong outputs, and their defects."""
    reason: str = ""
    """Why there is no best candidate."""


@dataclass(frozen=True)
class Attempt:
    """Event: a candidate was measured."""

    tried: int
    best_microseconds: float | None


def search(building: Building, rig: Rig, late: Callable[[], bool], *, seed: int = 0) -> Generator[Attempt, None, Found]:
    """Searches the fastest correct kernels of a layer on a GPU; yields an event per candidate. Raises DeviceError.

    The cost model's first choice is measured even when `late`.
    """
    case, first = building.case, building.first
    candidates: list[Candidate] = []
    measured: list[Measured] = []
    wrong: list[str] = []
    tried = not_built = 0
    why_not = ""
    with rig.bench(case, seed) as bench:
        check = OutputCheck(case, bench, seed)
        for tiling, future in building.as_built(late):
            try:
                built = future.result()
            except NotBuiltError as error:
                not_built, why_not = not_built + 1, str(error)
                continue
            defect, microseconds = _measure(case, bench, check, tiling, built)
            if microseconds is None:
                wrong.append(f"{tiling}: {defect}")
            else:
                candidate = Candidate(tiling, built, microseconds)
                measured.append(Measured.of(candidate))
                candidates = _fastest([*candidates, candidate], first)
                if candidates[0].tiling == tiling:
                    building.favour(tiling)
            tried += 1
            yield Attempt(tried, candidates[0].cold_microseconds if candidates else None)
        if not candidates:
            reason = "all of its kernels are wrong" if wrong else f"nothing could be built: {why_not}"
            return Found(None, None, tried, (), not_built, tuple(wrong), reason)
        best, model, refused = _final(bench, check, candidates, first)
    reason = "" if best else "its fastest kernels are wrong"
    right = tuple(each for each in measured if each.tiling not in refused)
    return Found(best, model, tried, right, not_built, (*wrong, *refused.values()), reason)


def _measure(
    case: Case, bench: Bench, check: OutputCheck, tiling: Tiling, built: BuiltLayer
) -> tuple[str, float | None]:
    """The defect of a candidate, or its time."""
    try:
        defect = check.defect(tiling, bench.output(built.kernels))
        return defect, None if defect else bench.cold_microseconds(built.kernels)
    except DeviceError as error:
        # After an illegal access the GPU is unusable for this process.
        raise DeviceError(f"{case.key.operator} at batch {case.key.batch} with {tiling}: {error}") from None


def _fastest(candidates: Sequence[Candidate], first: Tiling) -> list[Candidate]:
    """The finalists so far, fastest first; the kernels of others are released."""
    ordered = sorted(candidates, key=lambda candidate: candidate.cold_microseconds)
    return ordered[:FINALISTS] + [candidate for candidate in ordered[FINALISTS:] if candidate.tiling == first]


def _final(
    bench: Bench, check: OutputCheck, candidates: Sequence[Candidate], first: Tiling
) -> tuple[Winner | None, Winner | None, dict[Tiling, str]]:
    """The best of them, the cost model's choice if not wrong, and the defects of wrong ones.

    Candidates that may be the best are timed again in turn.
    """
    limit = CLOSE * candidates[0].cold_microseconds
    finalists = [candidate for candidate in candidates if candidate.cold_microseconds <= limit]
    taken = {candidate.tiling: [candidate.cold_microseconds] for candidate in candidates}
    for _ in range(ROUNDS if len(finalists) > 1 else 0):
        for candidate in finalists:
            taken[candidate.tiling].append(bench.cold_microseconds(candidate.built.kernels))
    again = [
        Candidate(candidate.tiling, candidate.built, statistics.median(taken[candidate.tiling]))
        for candidate in candidates
    ]
    refused: dict[Tiling, str] = {}
    for candidate in sorted(again, key=lambda candidate: candidate.cold_microseconds):
        defect = check.reference_defect(candidate.tiling, bench.output(candidate.built.kernels))
        if not defect:
            best = _winner(bench, candidate)
            chosen = next((each for each in again if each.tiling == first and first not in refused), None)
            if chosen is None or chosen is candidate:
                return best, None if chosen is None else best, refused
            return best, _winner(bench, chosen), refused
        refused[candidate.tiling] = f"{candidate.tiling}: {defect}"
    return None, None, refused


def _winner(bench: Bench, candidate: Candidate) -> Winner:
    times = Times(candidate.cold_microseconds, bench.warm_microseconds(candidate.built.kernels))
    return Winner(candidate.tiling, candidate.built, times)
