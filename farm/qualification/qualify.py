"""One call of `farm admit`: a trial on a GPU, and the records that come of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from codegen.ir.layer_spec import DataType
from codegen.keys import assembler_digest
from farm.config.settings import Settings
from farm.errors import NoWorkerError
from farm.executors.gpu import open_gpu
from farm.ledger import open_ledger
from farm.qualification.record import AdmissionRecord
from farm.qualification.run import Started, TrialEvent, TrialPlan, Tried, TriedShape, trial_work


class TrialProgress:
    """Shows nothing; a subclass overrides what it wants to show."""

    def waiting(self, reason: str) -> None:
        """There is no GPU for it yet."""

    def started(self, started: Started) -> None:
        """The trial begins."""

    def tried(self, shape: TriedShape) -> None:
        """A shape's layers were compared."""


@dataclass(frozen=True)
class Outcome:
    """What a trial found."""

    started: Started
    tried: dict[DataType, Tried]
    records: tuple[AdmissionRecord, ...]
    """One for each data type of which layers were compared, or broke."""


def admit(settings: Settings, plan: TrialPlan, progress: TrialProgress, *, local: bool = False) -> Outcome:
    """Tries the assembler on the cluster's GPU, or with `local` on this machine's, and keeps the records.

    Raises DeviceError and NoWorkerError without a GPU, UsageError for one whose code the assembler does not know.
    """
    ledger = open_ledger(settings)
    try:
        with open_gpu(settings, local=local, notice=progress.waiting) as gpu:
            outcome = follow(gpu.run(partial(trial_work, plan=plan)), plan, progress)
        ledger.admissions.put(outcome.records)
    finally:
        ledger.close()
    return outcome


def follow(events: Iterable[TrialEvent], plan: TrialPlan, progress: TrialProgress) -> Outcome:
    """Shows how a trial goes, and adds up what it finds."""
    started: Started | None = None
    found: dict[DataType, Tried] = {}
    for event in events:
        if isinstance(event, Started):
            started = event
            found = {data_type: Tried() for data_type in event.data_types}
            progress.started(event)
        else:
            found[event.data_type] += event.tried
            progress.tried(event)
    if started is None:
        raise NoWorkerError("the trial ended before it began: run the same command again")
    now = datetime.now(UTC).replace(microsecond=0)
    records = tuple(
        AdmissionRecord(
            arch=started.arch,
            ptxas=started.ptxas,
            data_type=data_type,
            sources=assembler_digest(),
            gpu=started.gpu,
            driver=started.driver,
            first=plan.first,
            layers=tried.layers,
            shapes=tried.shapes,
            outputs=tried.outputs,
            refused=tried.refused.total(),
            wrong=len(tried.wrong),
            tried_at=now,
        )
        for data_type, tried in found.items()
        if tried.layers or tried.wrong
    )
    return Outcome(started, found, records)
