"""How things look: tables that fit a terminal, durations and sizes in words, --json as one document."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from cli.streams import StreamConsole, discard
from codegen.spec import SkippedLayer
from farm.jobs import Job, Status

PIPE_WIDTH = 10_000
"""Columns where there is no terminal, and COLUMNS is not set: no line is wrapped, and nothing is cut."""

STATUS_STYLES = {
    Status.PENDING: "yellow",
    Status.RUNNING: "cyan",
    Status.SUCCEEDED: "green",
    Status.FAILED: "red",
    Status.CRASHED: "magenta",
    Status.CANCELLED: "dim",
}


def stdout() -> StreamConsole:
    """For results. Colours only where they are seen, or where FORCE_COLOR asks for them."""
    return _console(stderr=False)


def stderr() -> StreamConsole:
    """For progress, warnings and errors, so that stdout holds results alone."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> StreamConsole:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    return StreamConsole(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def print_error(message: str) -> None:
    """In one line, however long, so that it can be searched for."""
    stderr().print(Text(f"farm: {message}", style="red"), soft_wrap=True)


def print_warning(message: str) -> None:
    """What a person should know although it is no error."""
    stderr().print(Text(f"warning: {message}", style="yellow"), soft_wrap=True)


def print_json(document: Any) -> None:
    """The one document of a --json call."""
    try:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    except BrokenPipeError:
        discard(sys.stdout)


def status_text(status: Status) -> Text:
    """A state in its colour."""
    return Text(str(status), style=STATUS_STYLES[status])


def counted(count: int, noun: str) -> str:
    """As in 1 cubin, 12 cubins."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float | None) -> str:
    """As in 0.4s, 12s, 3m05s, 2h10m, 4d03h."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def size(count_bytes: int) -> str:
    """As in 812 B, 14 KB, 3.2 MB, 1.5 GB."""
    if count_bytes < 1000:
        return f"{count_bytes} B"
    if count_bytes < 1_000_000:
        return f"{count_bytes / 1000:.0f} KB"
    if count_bytes < 1_000_000_000:
        return f"{count_bytes / 1e6:.1f} MB"
    return f"{count_bytes / 1e9:.1f} GB"


def magnitude(count: int) -> str:
    """As in 812, 14.2K, 3.2M, 1.5G."""
    for unit, factor in (("G", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f}{unit}"
    return str(count)


def moment(at: datetime, now: datetime) -> str:
    """A time of today as 14:03:22, an older one as 2026-11-20, in the terminal's own time zone."""
    local, today = at.astimezone(), now.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == today.date() else "%Y-%m-%d")


def job_seconds(job: Job, now: datetime) -> float | None:
    """How long it ran, or has been running."""
    if job.started_at is None:
        return None
    return ((job.finished_at or now) - job.started_at).total_seconds()


def job_json(job: Job) -> dict[str, Any]:
    """A job as --json gives it."""
    now = datetime.now(UTC)
    return {
        "id": job.id,
        "submission": job.submission,
        "submitter": job.submitter,
        "name": job.name,
        "model": job.model,
        "archs": list(job.options.archs),
        "batch": job.options.batch,
        "stage": job.stage,
        "done": job.done,
        "total": job.total,
        "hits": job.hits,
        "submitted_at": job.submitted_at.isoformat(),
        "started_at": job.started_at.isoformat() if job.started_at else None,
        "finished_at": job.finished_at.isoformat() if job.finished_at else None,
        "seconds": job_seconds(job, now),
        "tries": job.tries,
        "status": str(job.status),
        "reason": job.reason,
        "skipped": [skipped_json(layer) for layer in job.skipped],
    }


def skipped_json(layer: SkippedLayer) -> dict[str, Any]:
    """A node that is not compiled, as --json gives it."""
    return {
        "name": layer.name,
        "operator": layer.operator,
        "reason": layer.reason,
        "weights": layer.weights,
        "multiply_adds": layer.multiply_adds,
    }


JOB_COLUMNS = (
    "ID",
    "SUBMITTER",
    "NAME",
    "MODEL",
    "ARCHS",
    "STAGE",
    "DONE",
    "CACHE",
    "SUBMITTED",
    "DURATION",
    "TRIES",
    "STATUS",
    "REASON",
)
SHARES = {"NAME": 0.35, "MODEL": 0.3, "ARCHS": 0.3, "REASON": 1.0}
"""Columns that are wrapped, and how much of the room that the others leave each may take at most."""
LEAVE_FIRST = (("MODEL", "SUBMITTER", "TRIES"), ("STAGE", "SUBMITTED"))
"""Columns that leave a terminal of fewer than 150 and of fewer than 95 columns."""

REASON_LENGTH = 90
"""Of a reason in the status table; `farm inspect` has it whole."""


def plain_table(width: int) -> Table:
    """Without lines; the gaps are as wide as the terminal allows."""
    return Table(box=None, padding=(0, _gap(width), 0, 0), pad_edge=False, header_style="bold")


def _gap(width: int) -> int:
    return 2 if width >= 120 else 1


def job_table(jobs: Sequence[Job], width: int) -> Table:
    """The status table. What does not fit is wrapped, never cut; columns that matter least leave a narrow terminal."""
    now = datetime.now(UTC)
    rows = [_job_cells(job, now) for job in jobs]
    left_out = LEAVE_FIRST[0] * (width < 150) + LEAVE_FIRST[1] * (width < 95)
    columns = [name for name in JOB_COLUMNS if name not in left_out]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    room = width - sum(widths[name] for name in columns if name not in SHARES) - _gap(width) * (len(columns) - 1)
    crowded = sum(widths[name] for name in columns if name in SHARES) > room
    table = plain_table(width)
    for name in columns:
        wraps = crowded and name in SHARES
        table.add_column(
            name,
            max_width=max(len(name), int(room * SHARES[name])) if wraps else None,
            no_wrap=not wraps,
            overflow="fold",
            justify="right" if name in ("DONE", "CACHE", "DURATION", "TRIES") else "left",
        )
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def _job_cells(job: Job, now: datetime) -> dict[str, str | Text]:
    return {
        "ID": job.id[:8],
        "SUBMITTER": job.submitter,
        "NAME": job.name,
        "MODEL": job.model,
        "ARCHS": " ".join(arch.removeprefix("sm_") for arch in job.options.archs),
        "STAGE": job.stage or "-",
        "DONE": f"{job.done}/{job.total}",
        "CACHE": str(job.hits),
        "SUBMITTED": moment(job.submitted_at, now),
        "DURATION": duration(job_seconds(job, now)),
        "TRIES": str(job.tries),
        "STATUS": status_text(job.status),
        "REASON": textwrap.shorten(job.reason, REASON_LENGTH, placeholder=" ...") or "-",
    }


def counts_line(counts: Mapping[Status, int]) -> Text:
    """One line of how many jobs are in each state."""
    text = Text()
    for status in Status:
        if text:
            text.append("  ")
        count = counts.get(status, 0)
        text.append(f"{count} {status}", style=STATUS_STYLES[status] if count else "dim")
    return text
