"""One run of `farm tune`: layer by layer, the most expensive first, with each record stored at once.

An interruption loses one layer only, and the cheapest layers go without when time is short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Accumulator
from codegen.sass.qualification import NO_QUALIFICATIONS, AssemblerChoice, Qualifications
from codegen.selection.choose import misfit_of
from codegen.toolchain.tools import find_toolchain
from farm.bench.layers.stored_case import StoredCase, loaded_cases, stored_cases
from farm.config.settings import Settings
from farm.cuda.device import Device
from farm.cuda.measure.kernels import KernelPool
from farm.cuda.measure.workload import Case
from farm.executors import open_gpu
from farm.ledger import open_ledger
from farm.store import open_store
from farm.store.contract import blob_digest
from farm.tuning.files import shipped_records
from farm.tuning.record import TuningKey, TuningRecord
from farm.tuning.search.building import Builder
from farm.tuning.search.candidates import ParallelRanker, Ranker, serial_ranker
from farm.tuning.search.layer_kinds import Effort, Kind, kinds_of, led_by_records, part_of
from farm.tuning.search.layer_search import Attempt, Found, Measured, search
from farm.tuning.search.rig import GpuRig, Rig
from farm.worker.cache_lookup import known_toolchain


@dataclass(frozen=True)
class TunePlan:
    """Settings of a tuning run."""

    effort: Effort = field(default_factory=Effort)
    accumulate: Accumulator = "float32"
    optimisation: int = 3
    """Optimisation level of ptxas."""
    assembler: AssemblerChoice = "auto"
    """Assembler of the measured kernels."""
    seed: int = 0
    force: bool = False
    """Tune layers that already have a record of this GPU."""


@dataclass(frozen=True)
class Started:
    """Event: the run begins with this number of kinds of layers."""

    gpu: str
    layers: int


@dataclass(frozen=True)
class CandidateMeasured:
    """Event: a candidate of a layer was measured."""

    layer: str
    batch: int
    attempt: Attempt


@dataclass(frozen=True)
class Measurements:
    """All measurements of one layer, to which the cost model can be fitted."""

    spec: LayerSpec
    images: int
    """Images, or rows of a Linear."""
    density: float
    """Non-zeros / weights."""
    kernels: tuple[Measured, ...]
    """Candidates in the order of measurement."""

    @staticmethod
    def of(case: Case, found: Found) -> Measurements:
        return Measurements(case.spec, case.images, case.weights.nonzeros / case.spec.weights_count, found.measured)


@dataclass(frozen=True)
class Outcome:
    """Event: result of one layer at one batch."""

    layer: str
    also: tuple[str, ...]
    """Other layers of its kind, which share the record."""
    batch: int
    record: TuningRecord | None
    known: bool = False
    """Whether the record existed before."""
    not_built: int = 0
    wrong: tuple[str, ...] = ()
    reason: str = ""
    """Why there is no record."""
    left: bool = False
    """Whether the time was up before it."""
    measured: Measurements | None = None


TuningEvent = Started | CandidateMeasured | Outcome


class TuneProgress:
    """Receives the events of a run; this base class shows nothing."""

    def waiting(self, reason: str) -> None:
        """No GPU is free yet."""

    def started(self, gpu: str, layers: int) -> None:
        """Event: the run begins with this number of kinds of layers."""

    def trying(self, layer: str, batch: int, tried: int, best_microseconds: float | None) -> None:
        """A candidate of the layer was measured."""

    def done(self, outcome: Outcome) -> None:
        """A layer is done: tuned now or before, or without a record."""


class RecordTable(Protocol):
    """Storage of tuning records, such as the ledger's table."""

    def records(self, archs: Sequence[str] | None = None) -> list[TuningRecord]:
        """All records, or those of some architectures."""

    def put(self, record: TuningRecord) -> None:
        """Stores a record, replacing the one of equal key and GPU."""


def tune(
    settings: Settings, cases: Sequence[Case], plan: TunePlan, progress: TuneProgress, *, local: bool = False
) -> list[Outcome]:
    """Tunes layers on a GPU of the cluster or, with `local`, of this machine. Raises DeviceError and NoWorkerError."""
    ledger = open_ledger(settings)
    try:
        with open_gpu(settings, local=local, notice=progress.waiting) as gpu:
            sent = stored_cases(cases, open_store(settings)) if gpu.is_remote else cases
            known, qualifications = ledger.tuning.records(), ledger.qualifications.known()
            work = partial(tuning_work, cases=sent, known=known, plan=plan, qualifications=qualifications)
            return collect_outcomes(gpu.run(work), ledger.tuning, progress)
    finally:
        ledger.close()


def tuning_work(
    settings: Settings,
    cases: Sequence[Case | StoredCase],
    known: Sequence[TuningRecord],
    plan: TunePlan,
    qualifications: Qualifications = NO_QUALIFICATIONS,
) -> Generator[TuningEvent, None, None]:
    """Tunes layers on the GPU of the current machine. Raises DeviceError without one."""
    with Device() as device:
        store = open_store(settings)
        toolchain = known_toolchain(find_toolchain(settings.nvcc, settings.ptxas), store)
        with KernelPool(
            settings,
            store,
            toolchain,
            device.arch,
            plan.optimisation,
            assembler=plan.assembler,
            qualifications=qualifications,
        ) as pool:
            ranker = ParallelRanker(settings.jobs)
            yield from tune_on(GpuRig(device), pool, loaded_cases(cases, store), known, plan, shipped_records(), ranker)


def collect_outcomes(events: Iterable[TuningEvent], table: RecordTable, progress: TuneProgress) -> list[Outcome]:
    """Forwards events to `progress`, stores each record at once, and returns the outcomes."""
    outcomes = []
    for event in events:
        match event:
            case Started():
                progress.started(event.gpu, event.layers)
            case CandidateMeasured():
                progress.trying(event.layer, event.batch, event.attempt.tried, event.attempt.best_microseconds)
            case Outcome():
                if event.record is not None and not event.known:
                    table.put(event.record)
                outcomes.append(event)
                progress.done(event)
    return outcomes


def tune_on(
    rig: Rig,
    builder: Builder,
    cases: Sequence[Case],
    known: Iterable[TuningRecord],
    plan: TunePlan,
    shipped: Sequence[TuningRecord] = (),
    ranker: Ranker = serial_ranker,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[TuningEvent]:
    """Tunes layers on a rig, except those with a sufficient record of its GPU, unless `force`.

    Tilings of related records, `known` or `shipped`, are measured early.
    """
    begun = clock()
    known = tuple(known)
    kinds = [
        led_by_records(kind, (*known, *shipped))
        for kind in kinds_of(
            cases, rig.arch, plan.accumulate, plan.optimisation, builder.assembler_of, ranker, gpu=rig.gpu
        )
    ]
    records = {record.key: record for record in known if record.gpu == rig.gpu}
    yield Started(rig.gpu, len(kinds))
    todo = []
    for kind in kinds:
        record = records.get(kind.key)
        if record and not plan.force and _suffices(record, kind):
            yield Outcome(*_names(kind), record, known=True)
        elif not kind.ranked:
            yield Outcome(*_names(kind), None, reason="no tiling fits it")
        else:
            todo.append(kind)
    effort = plan.effort
    buildings = effort.buildings(todo, builder, plan.accumulate)
    end = None if effort.seconds is None else begun + effort.seconds
    try:
        for i, (kind, building) in enumerate(zip(todo, buildings, strict=True)):
            now = clock()
            if end is not None and now >= end:
                yield Outcome(*_names(kind), None, reason="there was no time for it", left=True)
                continue
            building.before(buildings[i + 1 :])
            deadline = now + (effort.budget_seconds if end is None else (end - now) * part_of(todo[i:]))
            yield from _tuned(search(building, rig, partial(_over, clock, deadline), seed=plan.seed), kind, rig.gpu)
    finally:
        for building in buildings:
            building.give_up()


def _over(clock: Callable[[], float], deadline: float) -> bool:
    return clock() >= deadline


def _suffices(record: TuningRecord, kind: Kind) -> bool:
    """Whether a record makes tuning unnecessary: chosen by cold times, with a tiling that fits the weights."""
    chosen_so = record.cold_microseconds is not None
    case = kind.case
    return chosen_so and not misfit_of(case.spec, record.tiling, case.weights.nonzeros_per_output, kind.device)


def _tuned(searching: Generator[Attempt, None, Found], kind: Kind, gpu: str) -> Iterator[TuningEvent]:
    try:
        while True:
            yield CandidateMeasured(kind.case.key.operator, kind.case.key.batch, next(searching))
    except StopIteration as end:
        found: Found = end.value
    record, measured = _record_of(found, kind.key, gpu), Measurements.of(kind.case, found)
    yield Outcome(*_names(kind), record, False, found.not_built, found.wrong, found.reason, False, measured)


def _names(kind: Kind) -> tuple[str, tuple[str, ...], int]:
    return kind.case.key.operator, kind.also, kind.case.key.batch


def _record_of(found: Found, key: TuningKey, gpu: str) -> TuningRecord | None:
    if found.best is None:
        return None
    model = found.model or found.best  # a first choice that was not built has no time
    return TuningRecord(
        key=key,
        gpu=gpu,
        tiling=found.best.tiling,
        microseconds=found.best.times.warm_microseconds,
        model_microseconds=model.times.warm_microseconds,
        tried=found.tried,
        cubins=tuple(blob_digest(cubin) for cubin, _ in found.best.built.kernels),
        measured_at=datetime.now(UTC),
        cold_microseconds=found.best.times.cold_microseconds,
        model_cold_microseconds=model.times.cold_microseconds,
    )
