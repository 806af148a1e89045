"""The search for one layer: candidates in the cost model's order, built while others are measured, until time is up.

What is nearly like the fastest so far is tried before the others: the model knows blocks and K groups better than it
knows chunks and stages.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Protocol

from codegen.choice import ranked_tilings
from codegen.errors import DeviceError
from codegen.tiling import Accumulator, Tiling
from farm.gpu.kernels import BuiltLayer, NotBuiltError
from farm.gpu.workload import Case
from farm.tuner.judge import Judge
from farm.tuner.rig import Bench, Rig

ALIKE = 3
"""Tilings with the same tile, rows, images and K groups that are tried before others, unless they are the fastest."""
FINALISTS = 4
"""The fastest, measured again in turn, and the cost model's first choice with them: clocks change during a search."""
ROUNDS = 3


class Builder(Protocol):
    """Builds kernels beside the search: a KernelPool."""

    @property
    def workers(self) -> int:
        """Builds at once."""

    def submit(self, case: Case, accumulate: Accumulator, tiling: Tiling | None = None) -> Future[BuiltLayer]:
        """Begins a layer. Its future raises NotBuiltError."""

    def give_up(self) -> None:
        """What was begun so far may end without a result."""


@dataclass(frozen=True)
class Effort:
    """How much is tried."""

    budget_seconds: float = 60.0
    """For one layer at one batch; the cost model's first choice is measured however long it takes."""
    candidates: int | None = None
    """At most; None: as many as the time allows."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A tiling whose kernels are right, and their time."""

    tiling: Tiling
    built: BuiltLayer
    microseconds: float


@dataclass(frozen=True, eq=False)
class Found:
    """What a search came to."""

    best: Trial | None
    model: Trial | None
    """The cost model's first choice; None if it did not build or is wrong."""
    tried: int = 0
    """Kernels measured."""
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


def spread(tilings: Sequence[Tiling]) -> list[Tiling]:
    """The same tilings in the same order, but of those nearly alike only a few at first, the others after all."""
    seen: dict[tuple[int, ...], int] = defaultdict(int)
    first: list[Tiling] = []
    later: list[Tiling] = []
    for tiling in tilings:
        kind = _kind(tiling)
        seen[kind] += 1
        (first if seen[kind] <= ALIKE else later).append(tiling)
    return first + later


def _kind(tiling: Tiling) -> tuple[int, ...]:
    """The same for tilings that are nearly alike."""
    return tiling.tile_width, tiling.tile_height, tiling.rows, tiling.images, tiling.group_kernels


def search(
    case: Case,
    rig: Rig,
    builder: Builder,
    effort: Effort,
    *,
    accumulate: Accumulator = "float32",
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Attempt, None, Found]:
    """Tells its attempts; gives the fastest right kernels of a layer on this GPU. Raises DeviceError where it fails."""
    deadline = clock() + effort.budget_seconds
    ranked = ranked_tilings(case.spec, case.images, case.weights.nonzeros_per_kernel, accumulate)
    if not ranked:
        return Found(None, None, reason="no tiling fits it")
    trials: list[Trial] = []
    wrong: list[str] = []
    tried = not_built = 0
    why_not = ""
    with rig.bench(case, seed) as bench:
        judge = Judge(case, bench, seed)
        begun = _Building(case, builder, spread(ranked), accumulate, effort.candidates)
        for tiling, future in begun.as_built(lambda: clock() >= deadline):
            try:
                built = future.result()
            except NotBuiltError as error:
                not_built, why_not = not_built + 1, str(error)
                continue
            objection, microseconds = _measure(case, bench, judge, tiling, built)
            if objection:
                wrong.append(f"{tiling}: {objection}")
            else:
                trials = _fastest([*trials, Trial(tiling, built, microseconds)], ranked[0])
                if trials[0].tiling == tiling:
                    begun.favour(tiling)
            tried += 1
            yield Attempt(tried, trials[0].microseconds if trials else None)
        if not trials:
            reason = "all of its kernels are wrong" if wrong else f"nothing could be built: {why_not}"
            return Found(None, None, tried, not_built, tuple(wrong), reason)
        best, model = _final(bench, trials, ranked[0])
    return Found(best, model, tried, not_built, tuple(wrong))


def _measure(case: Case, bench: Bench, judge: Judge, tiling: Tiling, built: BuiltLayer) -> tuple[str, float]:
    """What is wrong, or else the time."""
    try:
        objection = judge.objection(tiling, bench.output(built.kernels))
        return objection, 0.0 if objection else bench.microseconds(built.kernels)
    except DeviceError as error:
        # A kernel that reads or writes where it may not leaves the GPU unusable for this process.
        raise DeviceError(f"{case.key.operator} at batch {case.key.batch} with {tiling}: {error}") from None


def _fastest(trials: Sequence[Trial], first: Tiling) -> list[Trial]:
    """The finalists so far, the fastest first; kernels of the others need not be held any longer."""
    ordered = sorted(trials, key=lambda trial: trial.microseconds)
    return ordered[:FINALISTS] + [trial for trial in ordered[FINALISTS:] if trial.tiling == first]


def _final(bench: Bench, finalists: Sequence[Trial], first: Tiling) -> tuple[Trial, Trial | None]:
    """The best of them, and the cost model's choice, by times taken in turn."""
    times: dict[Tiling, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for trial in finalists:
            times[trial.tiling].append(bench.microseconds(trial.built.kernels))
    again = [Trial(trial.tiling, trial.built, statistics.median(times[trial.tiling])) for trial in finalists]
    best = min(again, key=lambda trial: trial.microseconds)
    return best, next((trial for trial in again if trial.tiling == first), None)


class _Building:
    """Candidates on their way: so many begun that every builder has one to go on with."""

    def __init__(
        self, case: Case, builder: Builder, tilings: Sequence[Tiling], accumulate: Accumulator, most: int | None
    ) -> None:
        self._case = case
        self._builder = builder
        self._first = tilings[0]
        self._left = list(tilings)
        self._room = len(tilings) if most is None else most
        self._accumulate = accumulate
        self._begun: dict[Future[BuiltLayer], Tiling] = {}

    def favour(self, tiling: Tiling) -> None:
        """What is nearly like this one comes next."""
        self._left.sort(key=lambda other: _kind(other) != _kind(tiling))

    def as_built(self, late: Callable[[], bool]) -> Iterator[tuple[Tiling, Future[BuiltLayer]]]:
        """Each as it is built, whatever came of it; when it is late, only the first one is still waited for."""
        try:
            self._begin(1)
            while True:
                if late():
                    self._drop()
                else:
                    self._begin(2 * self._builder.workers - len(self._begun))
                if not self._begun:
                    return
                done, _ = wait(self._begun, return_when=FIRST_COMPLETED)
                # The best predicted first: time may be up before all have been measured.
                for future in [each for each in self._begun if each in done]:
                    tiling = self._begun.pop(future)
                    if tiling == self._first or not late():
                        yield tiling, future
        finally:
            for future in self._begun:
                future.cancel()
            self._builder.give_up()

    def _begin(self, count: int) -> None:
        count = min(max(0, count), self._room)
        next_ones, self._left = self._left[:count], self._left[count:]
        self._room -= len(next_ones)
        for tiling in next_ones:
            self._begun[self._builder.submit(self._case, self._accumulate, tiling)] = tiling

    def _drop(self) -> None:
        """What runs already ends after its kernel at hand, which is in the store for the next time."""
        for future in [each for each, tiling in self._begun.items() if tiling != self._first]:
            future.cancel()
            del self._begun[future]
