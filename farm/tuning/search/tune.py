"""One call of `farm tune`: layer by layer, the most expensive first, each winner kept at once.

So an interruption loses one layer only, and what the time does not suffice for is what matters least.
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
from farm.tuning.search.candidates import Ranker, SideBySide, in_turn
from farm.tuning.search.layer_kinds import Effort, Kind, kinds_of, led_by_records, part_of
from farm.tuning.search.layer_search import Attempt, Found, Measured, search
from farm.tuning.search.rig import GpuRig, Rig
from farm.worker.cache_lookup import known_toolchain


@dataclass(frozen=True)
class TunePlan:
    """How layers are tuned."""

    effort: Effort = field(default_factory=Effort)
    accumulate: Accumulator = "float32"
    optimisation: int = 3
    """Level of ptxas."""
    assembler: AssemblerChoice = "auto"
    """Who makes the machine code that is measured."""
    seed: int = 0
    force: bool = False
    """Also layers that have a record of this GPU."""


@dataclass(frozen=True)
class Started:
    """So many layers are to be tuned on this GPU; those of the same kind are one."""

    gpu: str
    layers: int


@dataclass(frozen=True)
class Tried:
    """A candidate of a layer was measured."""

    layer: str
    batch: int
    attempt: Attempt


@dataclass(frozen=True)
class Measurements:
    """Whatever was timed of one layer: what the cost model can be fitted to."""

    spec: LayerSpec
    images: int
    """Or rows of a Linear."""
    density: float
    """Non-zeros / weights."""
    kernels: tuple[Measured, ...]
    """In the order in which they were."""

    @staticmethod
    def of(case: Case, found: Found) -> Measurements:
        return Measurements(case.spec, case.images, case.weights.nonzeros / case.spec.weights_count, found.measured)


@dataclass(frozen=True)
class Outcome:
    """What became of one layer at one batch."""

    layer: str
    also: tuple[str, ...]
    """Other layers of the same kind, which its record is for too."""
    batch: int
    record: TuningRecord | None
    known: bool = False
    """The record is from before."""
    not_built: int = 0
    wrong: tuple[str, ...] = ()
    reason: str = ""
    """Why there is no record, in words."""
    left: bool = False
    """There was no time for it."""
    measured: Measurements | None = None


TuningEvent = Started | Tried | Outcome


class TuneProgress:
    """Shows nothing; a subclass overrides what it wants to show."""

    def waiting(self, reason: str) -> None:
        """There is no GPU for it yet."""

    def started(self, gpu: str, layers: int) -> None:
        """So many layers are to be tuned on this GPU; those of the same kind are one."""

    def trying(self, layer: str, batch: int, tried: int, best_microseconds: float | None) -> None:
        """A candidate of the layer was measured."""

    def done(self, outcome: Outcome) -> None:
        """A layer is tuned, or was."""


class RecordTable(Protocol):
    """Where records are kept: the ledger's table."""

    def records(self, archs: Sequence[str] | None = None) -> list[TuningRecord]:
        """All, or those for some architectures."""

    def put(self, record: TuningRecord) -> None:
        """Keeps a record in place of the one of the same key and GPU."""


def tune(
    settings: Settings, cases: Sequence[Case], plan: TunePlan, progress: TuneProgress, *, local: bool = False
) -> list[Outcome]:
    """Tunes layers on the cluster's GPU, or with `local` on this machine's. Raises DeviceError and NoWorkerError."""
    ledger = open_ledger(settings)
    try:
        with open_gpu(settings, local=local, notice=progress.waiting) as gpu:
            sent = stored_cases(cases, open_store(settings)) if gpu.is_remote else cases
            known, qualifications = ledger.tuning.records(), ledger.qualifications.known()
            work = partial(tuning_work, cases=sent, known=known, plan=plan, qualifications=qualifications)
            return follow(gpu.run(work), ledger.tuning, progress)
    finally:
        ledger.close()


def tuning_work(
    settings: Settings,
    cases: Sequence[Case | StoredCase],
    known: Sequence[TuningRecord],
    plan: TunePlan,
    qualifications: Qualifications = NO_QUALIFICATIONS,
) -> Generator[TuningEvent, None, None]:
    """`tune_on` the GPU of the machine where it runs. Raises DeviceError without one."""
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
            ranker = SideBySide(settings.jobs)
            yield from tune_on(GpuRig(device), pool, loaded_cases(cases, store), known, plan, shipped_records(), ranker)


def follow(events: Iterable[TuningEvent], table: RecordTable, progress: TuneProgress) -> list[Outcome]:
    """Shows how a tuning goes, and keeps each record as it comes."""
    outcomes = []
    for event in events:
        match event:
            case Started():
                progress.started(event.gpu, event.layers)
            case Tried():
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
    ranker: Ranker = in_turn,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[TuningEvent]:
    """Tunes layers on a rig; with a record of its GPU that does for them they are left, unless `force`.

    Tilings of what is `known` or `shipped` for the same layer otherwise, at another density, are tried early.
    """
    begun = clock()
    known = tuple(known)
    kinds = [
        led_by_records(kind, (*known, *shipped))
        for kind in kinds_of(cases, rig.arch, plan.accumulate, plan.optimisation, builder.assembler_of, ranker)
    ]
    records = {record.key: record for record in known if record.gpu == rig.gpu}
    yield Started(rig.gpu, len(kinds))
    todo = []
    for kind in kinds:
        record = records.get(kind.key)
        if record and not plan.force and _does_for(record, kind.case):
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


def _does_for(record: TuningRecord, case: Case) -> bool:
    """Whether nothing better is to be expected of this layer: its tiling fits, and was chosen as in a network."""
    chosen_so = record.cold_microseconds is not None
    return chosen_so and not misfit_of(case.spec, record.tiling, case.weights.nonzeros_per_output)


def _tuned(searching: Generator[Attempt, None, Found], kind: Kind, gpu: str) -> Iterator[TuningEvent]:
    try:
        while True:
            yield Tried(kind.case.key.operator, kind.case.key.batch, next(searching))
    except StopIteration as end:
        found: Found = end.value
    record, measured = _record_of(found, kind.key, gpu), Measurements.of(kind.case, found)
    yield Outcome(*_names(kind), record, False, found.not_built, found.wrong, found.reason, False, measured)


def _names(kind: Kind) -> tuple[str, tuple[str, ...], int]:
    return kind.case.key.operator, kind.also, kind.case.key.batch


def _record_of(found: Found, key: TuningKey, gpu: str) -> TuningRecord | None:
    if found.best is None:
        return None
    model = found.model or found.best  # a first choice that does not build has no time
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
