"""The search for one layer: candidates in the cost model's order, built while others are measured, until it is late.

What is nearly like the fastest so far is tried before the others: the model knows blocks and K groups better than it
knows chunks and stages.
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
from farm.tuning.search.check import Judge
from farm.tuning.search.rig import Bench, Rig, Times

FINALISTS = 4
"""The fastest, of which those that are close are measured again in turn: clocks change during a search."""
CLOSE = 1.1
"""At most so much slower than the fastest."""
ROUNDS = 2


@dataclass(frozen=True, eq=False)
class Trial:
    """A tiling whose kernels are right, and their time."""

    tiling: Tiling
    built: BuiltLayer
    cold_microseconds: float


@dataclass(frozen=True, eq=False)
class Winner:
    """What a record is made of."""

    tiling: Tiling
    built: BuiltLayer
    times: Times


@dataclass(frozen=True)
class Measured:
    """What is kept of a trial: not its kernels."""

    tiling: Tiling
    cold_microseconds: float
    parts: int
    registers: int
    cubin_bytes: int

    @staticmethod
    def of(trial: Trial) -> Measured:
        facts = trial.built.facts
        parts, registers, size = (int(facts.get(name, 0)) for name in ("parts", "registers", "cubin_bytes"))
        return Measured(trial.tiling, trial.cold_microseconds, parts, registers, size)

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
    """What a search came to."""

    best: Winner | None
    model: Winner | None
    """The cost model's first choice; None if it did not build or is wrong."""
    tried: int = 0
    """Kernels measured."""
    measured: tuple[Measured, ...] = ()
    """The right ones, in the order in which they were."""
    not_built: int = 0
    wrong: tuple[str, ...] = ()
    """Each tiling whose kernels compute something else, and how that showed."""
    reason: str = ""
    """Why there is no best, in words."""


@dataclass(frozen=True)
class Attempt:
    """Told after each candidate."""

    tried: int
    best_microseconds: float | None


def search(building: Building, rig: Rig, late: Callable[[], bool], *, seed: int = 0) -> Generator[Attempt, None, Found]:
    """Tells its attempts; gives the fastest right kernels of a layer on this GPU. Raises DeviceError where it fails.

    The cost model's first choice is measured however late it is.
    """
    case, first = building.case, building.first
    trials: list[Trial] = []
    measured: list[Measured] = []
    wrong: list[str] = []
    tried = not_built = 0
    why_not = ""
    with rig.bench(case, seed) as bench:
        judge = Judge(case, bench, seed)
        for tiling, future in building.as_built(late):
            try:
                built = future.result()
            except NotBuiltError as error:
                not_built, why_not = not_built + 1, str(error)
                continue
            objection, microseconds = _measure(case, bench, judge, tiling, built)
            if microseconds is None:
                wrong.append(f"{tiling}: {objection}")
            else:
                trial = Trial(tiling, built, microseconds)
                measured.append(Measured.of(trial))
                trials = _fastest([*trials, trial], first)
                if trials[0].tiling == tiling:
                    building.favour(tiling)
            tried += 1
            yield Attempt(tried, trials[0].cold_microseconds if trials else None)
        if not trials:
            reason = "all of its kernels are wrong" if wrong else f"nothing could be built: {why_not}"
            return Found(None, None, tried, (), not_built, tuple(wrong), reason)
        best, model, refused = _final(bench, judge, trials, first)
    reason = "" if best else "its fastest kernels are wrong"
    return Found(best, model, tried, tuple(measured), not_built, (*wrong, *refused), reason)


def _measure(case: Case, bench: Bench, judge: Judge, tiling: Tiling, built: BuiltLayer) -> tuple[str, float | None]:
    """What is wrong, or else the time."""
    try:
        objection = judge.objection(tiling, bench.output(built.kernels))
        return objection, None if objection else bench.cold_microseconds(built.kernels)
    except DeviceError as error:
        # A kernel that reads or writes where it may not leaves the GPU unusable for this process.
        raise DeviceError(f"{case.key.operator} at batch {case.key.batch} with {tiling}: {error}") from None


def _fastest(trials: Sequence[Trial], first: Tiling) -> list[Trial]:
    """The finalists so far, the fastest first; kernels of the others need not be held any longer."""
    ordered = sorted(trials, key=lambda trial: trial.cold_microseconds)
    return ordered[:FINALISTS] + [trial for trial in ordered[FINALISTS:] if trial.tiling == first]


def _final(
    bench: Bench, judge: Judge, trials: Sequence[Trial], first: Tiling
) -> tuple[Winner | None, Winner | None, list[str]]:
    """The best of them, the cost model's choice, and what is wrong with those that would have been the best.

    Those that may be the best are timed again in turn.
    """
    limit = CLOSE * trials[0].cold_microseconds
    finalists = [trial for trial in trials if trial.cold_microseconds <= limit]
    taken = {trial.tiling: [trial.cold_microseconds] for trial in trials}
    for _ in range(ROUNDS if len(finalists) > 1 else 0):
        for trial in finalists:
            taken[trial.tiling].append(bench.cold_microseconds(trial.built.kernels))
    again = [Trial(trial.tiling, trial.built, statistics.median(taken[trial.tiling])) for trial in trials]
    refused: list[str] = []
    for trial in sorted(again, key=lambda trial: trial.cold_microseconds):
        objection = judge.last_objection(trial.tiling, bench.output(trial.built.kernels))
        if not objection:
            best = _winner(bench, trial)
            chosen = next((each for each in again if each.tiling == first), None)
            if chosen is None or chosen is trial:
                return best, None if chosen is None else best, refused
            return best, _winner(bench, chosen), refused
        refused.append(f"{trial.tiling}: {objection}")
    return None, None, refused


def _winner(bench: Bench, trial: Trial) -> Winner:
    times = Times(trial.cold_microseconds, bench.warm_microseconds(trial.built.kernels))
    return Winner(trial.tiling, trial.built, times)
