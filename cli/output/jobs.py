"""Jobs as a table, as JSON, and as counts per state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.text import Text

from cli.output.coverage import skipped_json
from cli.output.format import archs_text, duration, moment
from cli.output.table import EXTRA, Column, fitted_table
from farm.jobs.model import Job, Status, trace_id

STATUS_STYLES = {
    Status.PENDING: "yellow",
    Status.RUNNING: "cyan",
    Status.SUCCEEDED: "green",
    Status.FAILED: "red",
    Status.CRASHED: "magenta",
    Status.CANCELLED: "dim",
}

CLAIMED, CLAIMED_STYLE = "CLAIMED", "blue"

JOB_COLUMNS = (
    Column("ID"),
    Column("SUBMITTER", leaves=EXTRA),
    Column("NAME", least=12),
    Column("MODEL", least=12, leaves=EXTRA),
    Column("ARCHS", least=7, cut_end=True, leaves=1),
    Column("STAGE", leaves=4),
    Column("DONE", "right"),
    Column("CACHE", "right", leaves=3),
    Column("SUBMITTED", leaves=4),
    Column("DURATION", "right", leaves=2),
    Column("LEFT", "right", leaves=EXTRA),
    Column("TRIES", "right", leaves=EXTRA),
    Column("STATUS"),
    Column("REASON", least=8, cut_end=True),
)


def status_text(status: Status) -> Text:
    """A status in its colour."""
    return Text(str(status), style=STATUS_STYLES[status])


def job_state(job: Job) -> Text:
    """A job's status in its colour; CLAIMED where a coordinator has taken it, not started."""
    return Text(CLAIMED, style=CLAIMED_STYLE) if job.claimed else status_text(job.status)


def job_seconds(job: Job, now: datetime) -> float | None:
    """Seconds that the job ran, or has been running; None if it never started."""
    if job.started_at is None:
        return None
    return ((job.finished_at or now) - job.started_at).total_seconds()


def job_table(jobs: Sequence[Job], width: int) -> Group:
    """The table of `farm status`: one line per job."""
    now = datetime.now(UTC)
    return fitted_table(JOB_COLUMNS, [_job_cells(job, now) for job in jobs], width)


def _job_cells(job: Job, now: datetime) -> list[str | Text]:
    return [
        job.id[:8],
        job.submitter,
        job.name,
        job.model,
        archs_text(job.options.archs),
        job.stage or "-",
        f"{job.done}/{job.total}",
        str(job.hits),
        moment(job.submitted_at, now),
        duration(job_seconds(job, now)),
        duration(max(0.0, (job.ends_at - now).total_seconds())) if job.ends_at else "-",
        str(job.tries),
        job_state(job),
        " ".join(job.reason.split()) or "-",
    ]


def counts_line(counts: Mapping[Status, int], claimed: int = 0) -> Text:
    """The number of jobs in each state on one line; `claimed` of the RUNNING ones are shown as CLAIMED."""
    text = Text()
    for status in Status:
        if text:
            text.append("  ")
        count = counts.get(status, 0)
        if status is Status.RUNNING:
            if claimed:
                text.append(f"{claimed} {CLAIMED}  ", style=CLAIMED_STYLE)
            count -= claimed
        text.append(f"{count} {status}", style=STATUS_STYLES[status] if count else "dim")
    return text


def job_json(job: Job) -> dict[str, Any]:
    """A job as JSON."""
    now = datetime.now(UTC)
    return {
        "id": job.id,
        "submission": job.submission,
        "submitter": job.submitter,
        "name": job.name,
        "model": job.model,
        "archs": list(job.options.archs),
        "batches": list(job.options.batches),
        "stage": job.stage,
        "done": job.done,
        "total": job.total,
        "hits": job.hits,
        "submitted_at": job.submitted_at.isoformat(),
        "started_at": job.started_at.isoformat() if job.started_at else None,
        "finished_at": job.finished_at.isoformat() if job.finished_at else None,
        "seconds": job_seconds(job, now),
        "running": job.running,
        "ends_at": job.ends_at.isoformat() if job.ends_at else None,
        "tries": job.tries,
        "trace": trace_id(job.id),
        "status": str(job.status),
        "claimed": job.claimed,
        "reason": job.reason,
        "skipped": [skipped_json(layer) for layer in job.skipped],
    }
