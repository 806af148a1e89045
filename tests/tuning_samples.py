"""Tuning records for tests, and a rig that plays the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import Layer
from codegen.ir.dtypes import from_float32
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Accumulator, Tiling
from codegen.sass.qualification import Assembler
from codegen.verification.compare import random_input
from codegen.verification.reference import layer_output
from farm.cuda.measure.kernels import BuiltLayer, NotBuiltError
from farm.cuda.measure.workload import Case
from farm.tuning.book import key_of
from farm.tuning.record import TuningRecord
from farm.tuning.search.building import Builder
from farm.tuning.search.layer_search import Attempt, Found
from farm.tuning.search.rig import Rig
from farm.tuning.search.tune import Outcome, RecordTable, TunePlan, TuneProgress, collect_outcomes, tune_on
from tests.samples import layer

GPU = "NVIDIA Made-Up"


def record(
    tiling: Tiling,
    of: Layer | None = None,
    *,
    arch: str = "sm_90",
    gpu: str = GPU,
    microseconds: float = 10.0,
    batch: int = 64,
    optimisation: int = 3,
) -> TuningRecord:
    of = of or layer()
    key = key_of(arch, of.spec, batch, of.weights.nonzeros_per_output, "float32", optimisation)
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return TuningRecord(key, gpu, tiling, microseconds, 12.5, 40, ("ab" * 32, "cd" * 32), at)


class KeptRecords:
    """A table of records in memory."""

    def __init__(self, *records: TuningRecord) -> None:
        self.kept = {(each.key, each.gpu): each for each in records}

    def records(self, archs: Sequence[str] | None = None) -> list[TuningRecord]:
        return [each for each in self.kept.values() if archs is None or each.key.arch in archs]

    def put(self, record: TuningRecord) -> None:
        self.kept[record.key, record.gpu] = record


@dataclass
class PlayedRig:
    """A GPU whose kernels are tilings: how long each takes and which compute something else is up to the test."""

    time_of: Callable[[Tiling], float]
    """Time of a kernel in a network."""
    wrong: Callable[[Tiling], bool] = lambda tiling: False
    gpu: str = GPU
    arch: str = "sm_90"
    measured: list[Tiling] = field(default_factory=list)
    measured_warm: list[Tiling] = field(default_factory=list)
    case: Case | None = None
    warm_time_of: Callable[[Tiling], float] = lambda tiling: 4.0

    @contextmanager
    def bench(self, case: Case, seed: int) -> Iterator[PlayedRig]:
        self.case = case
        self.x: NDArray[Any] = random_input(case.spec, case.images, seed)
        self.residual = None
        self._right = from_float32(
            layer_output(case.spec, case.weights, self.x).astype(np.float32), case.spec.data_type
        )
        self._output = np.empty_like(self._right)
        yield self

    def output(self, kernels: Sequence[tuple[Any, Any]]) -> NDArray[Any]:
        self._output[:] = self._right  # the same array each time, as a real rig's
        output = self._output
        if self.wrong(kernels[0][1]):
            output[-1, -1, -1, -1] += 1.0
        return output

    def cold_microseconds(self, kernels: Sequence[tuple[Any, Any]]) -> float:
        self.measured.append(kernels[0][1])
        return self.time_of(kernels[0][1])

    def warm_microseconds(self, kernels: Sequence[tuple[Any, Any]]) -> float:
        self.measured_warm.append(kernels[0][1])
        return self.warm_time_of(kernels[0][1])


@dataclass
class PlayedBuilder:
    """Builds at once, but for tilings that do not build."""

    fails: Callable[[Tiling], bool] = lambda tiling: False
    workers: int = 2
    built: list[Tiling] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    assembler: Assembler = "ptxas"
    left_to_ptxas: list[Tiling] = field(default_factory=list)
    """Tilings that ptxas builds if the assembler refuses them."""

    def assembler_of(self, spec: LayerSpec, tiling: Tiling) -> Assembler:
        return self.assembler

    def submit(
        self,
        case: Case,
        accumulate: Accumulator,
        tiling: Tiling | None = None,
        wanted: Callable[[], bool] = lambda: True,
        *,
        fallback: bool = True,
    ) -> Future[BuiltLayer]:
        assert tiling is not None
        self.left_to_ptxas += [tiling] * fallback
        self.cases.append(case)
        self.built.append(tiling)
        future: Future[BuiltLayer] = Future()
        if self.fails(tiling):
            future.set_exception(NotBuiltError("ptxas ran into its time limit of 600 s"))
        else:
            kernels = ((repr(tiling).encode(), tiling),)
            future.set_result(BuiltLayer(tiling, kernels, 1.0, {}))
        return future


def ended(searching: Generator[Attempt, None, Found]) -> Found:
    """The result of a search."""
    while True:
        try:
            next(searching)
        except StopIteration as end:
            found: Found = end.value
            return found


def whole_tuning(
    rig: Rig,
    builder: Builder,
    table: RecordTable,
    cases: Sequence[Case],
    plan: TunePlan,
    progress: TuneProgress,
    clock: Callable[[], float] = time.monotonic,
) -> list[Outcome]:
    """A whole tuning on this rig, its records kept in the table."""
    return collect_outcomes(tune_on(rig, builder, cases, table.records(), plan, clock=clock), table, progress)


def other_tiling(tiling: Tiling) -> Tiling:
    """Not the same, and as good for small layers."""
    return replace(tiling, stages=3 if tiling.stages == 2 else 2)
