"""One call of `farm tune`: layer by layer, each winner kept at once, so that an interruption loses one layer only."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from codegen.choice import misfit_of
from codegen.tiling import Accumulator
from codegen.toolchain import find_toolchain
from farm.bench.stored_case import StoredCase, loaded_cases, stored_cases
from farm.executors.gpu import open_gpu
from farm.gpu.device import Device
from farm.gpu.kernels import KernelPool
from farm.gpu.workload import Case
from farm.ledger import open_ledger
from farm.settings import Settings
from farm.store import open_store
from farm.store.contract import blob_digest
from farm.tuner.rig import GpuRig, Rig
from farm.tuner.search import Attempt, Builder, Effort, Found, search
from farm.tuning.book import key_of
from farm.tuning.record import TuningKey, TuningRecord
from farm.worker.build import known_toolchain


@dataclass(frozen=True)
class TunePlan:
    """How layers are tuned."""

    effort: Effort = field(default_factory=Effort)
    accumulate: Accumulator = "float32"
    optimisation: int = 3
    """Level of ptxas."""
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
            work = partial(tuning_work, cases=sent, known=ledger.tuning.records(), plan=plan)
            return follow(gpu.run(work), ledger.tuning, progress)
    finally:
        ledger.close()


def tuning_work(
    settings: Settings, cases: Sequence[Case | StoredCase], known: Sequence[TuningRecord], plan: TunePlan
) -> Generator[TuningEvent, None, None]:
    """`tune_on` the GPU of the machine where it runs. Raises DeviceError without one."""
    with Device() as device:
        store = open_store(settings)
        toolchain = known_toolchain(find_toolchain(settings.nvcc, settings.ptxas), store)
        with KernelPool(settings, store, toolchain, device.arch, plan.optimisation) as pool:
            yield from tune_on(GpuRig(device), pool, loaded_cases(cases, store), known, plan)


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
    rig: Rig, builder: Builder, cases: Sequence[Case], known: Iterable[TuningRecord], plan: TunePlan
) -> Iterator[TuningEvent]:
    """Tunes layers on a rig; with a record of its GPU that does for them they are left, unless `force`."""
    of_key: dict[TuningKey, list[Case]] = {}
    for case in cases:
        of_key.setdefault(_key_of(case, rig.arch, plan), []).append(case)
    records = {record.key: record for record in known if record.gpu == rig.gpu}
    yield Started(rig.gpu, len(of_key))
    for key, (case, *alike) in of_key.items():
        also = tuple(each.key.operator for each in alike if each.key.operator != case.key.operator)
        record = records.get(key)
        if record and not plan.force and not misfit_of(case.spec, record.tiling, case.weights.nonzeros_per_kernel):
            yield Outcome(case.key.operator, also, case.key.batch, record, known=True)
        else:
            yield from _tuned(rig, builder, case, key, also, plan)


def _tuned(
    rig: Rig, builder: Builder, case: Case, key: TuningKey, also: tuple[str, ...], plan: TunePlan
) -> Iterator[TuningEvent]:
    layer, batch = case.key.operator, case.key.batch
    searching = search(case, rig, builder, plan.effort, accumulate=plan.accumulate, seed=plan.seed)
    try:
        while True:
            yield Tried(layer, batch, next(searching))
    except StopIteration as end:
        found: Found = end.value
    record = _record_of(found, key, rig.gpu)
    yield Outcome(layer, also, batch, record, False, found.not_built, found.wrong, found.reason)


def _record_of(found: Found, key: TuningKey, gpu: str) -> TuningRecord | None:
    if found.best is None:
        return None
    model = found.model or found.best  # a first choice that does not build has no time
    return TuningRecord(
        key=key,
        gpu=gpu,
        tiling=found.best.tiling,
        microseconds=found.best.microseconds,
        model_microseconds=model.microseconds,
        tried=found.tried,
        cubins=tuple(blob_digest(cubin) for cubin, _ in found.best.built.kernels),
        measured_at=datetime.now(UTC),
    )


def _key_of(case: Case, arch: str, plan: TunePlan) -> TuningKey:
    return key_of(arch, case.spec, case.images, case.weights.nonzeros_per_kernel, plan.accumulate, plan.optimisation)
