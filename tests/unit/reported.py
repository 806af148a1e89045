"""Jobs that ended, to be reported: in a real ledger, with weights and cubins that are played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import SkippedLayer
from farm.api import Farm
from farm.jobs.model import BuildOptions, NewSubmission
from farm.jobs.submission import new_job
from farm.reports.job_report import JobReport
from farm.reports.sweep_report import SweepReport
from farm.tuning.book import NO_RECORDS, TuningBook
from tests.samples import checkpoint
from tests.unit.farmyard import ARCHS, Farmyard, Play

HOSTILE = "<script>document.title='taken'</script>\"'&<img src=x onerror=alert(1)>"


def submitted(
    yard: Farmyard,
    *layers: Layer,
    name: str = "net",
    archs: tuple[str, ...] = ARCHS,
    batch: int = 64,
    skipped: tuple[SkippedLayer, ...] = (),
    book: TuningBook = NO_RECORDS,
) -> str:
    """The id of a job of these layers."""
    model = checkpoint(*layers, name=name, skipped=skipped)
    new = new_job(
        model,
        BuildOptions(archs, batches=(batch,), leave_dense="never"),
        namespace="test",
        name=name,
        store=yard.store,
        book=book,
    )
    [job] = yard.ledger.record_submission(NewSubmission(f"s-{new.id}", "ada", (new,)))
    return job.id


def swept(yard: Farmyard, models: Mapping[str, Sequence[Layer]], submitter: str = "ada") -> list[str]:
    """The ids of the jobs of these models, which are the submission `sweep`."""
    new = [
        new_job(
            checkpoint(*layers, name=name),
            BuildOptions(ARCHS, leave_dense="never"),
            namespace="test",
            name=name,
            store=yard.store,
        )
        for name, layers in models.items()
    ]
    return [job.id for job in yard.ledger.record_submission(NewSubmission("sweep", submitter, tuple(new)))]


def sweep(yard: Farmyard) -> SweepReport:
    return Farm(yard.settings, yard.store, yard.ledger).sweep_report("sweep")


def report(yard: Farmyard, job_id: str) -> JobReport:
    return Farm(yard.settings, yard.store, yard.ledger).report(job_id)


def reported(yard: Farmyard, *layers: Layer, play: Play = lambda request: None, **options: object) -> JobReport:
    """The report of a job that has ended."""
    job_id = submitted(yard, *layers, **options)
    yard.run([job_id], play)
    return report(yard, job_id)
