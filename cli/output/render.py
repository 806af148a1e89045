"""How things look: tables that fit a terminal, durations and sizes in words, --json as one document."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from cli.output.streams import StreamConsole, discard
from cli.output.table import EXTRA, WIDE, Column, fitted_table
from codegen.ir.layer_spec import SkippedLayer
from codegen.sass.qualification import ASSEMBLED
from farm.jobs.model import BuildResult, Job, Status

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

CLAIMED, CLAIMED_STYLE = "CLAIMED", "blue"


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
    print_text(json.dumps(document, indent=2) + "\n")


def print_text(text: str) -> None:
    """Writes text to stdout as it is; a reader that has gone away is no error."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        discard(sys.stdout)


def status_text(status: Status) -> Text:
    """A state in its colour."""
    return Text(str(status), style=STATUS_STYLES[status])


def job_state(job: Job) -> Text:
    """The same of a job; one that is RUNNING without a worker that has begun is only CLAIMED."""
    return Text(CLAIMED, style=CLAIMED_STYLE) if job.claimed else status_text(job.status)


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


def archs_text(archs: Sequence[str]) -> str:
    """As in 80 90 120."""
    return " ".join(arch.removeprefix("sm_") for arch in archs)


def percent(share: float) -> str:
    """Of 0 to 1, as in 90.0%."""
    return f"{share:.1%}"


def microseconds(value: float) -> str:
    """For a page, as in 12.3 \N{MICRO SIGN}s or 4.56 ms."""
    return f"{value / 1000:,.2f} ms" if value >= 1000 else f"{value:,.1f} \N{MICRO SIGN}s"


def built_how(result: BuildResult) -> str:
    """What it took to build a cubin, and what came of it."""
    rewritten = f"rewrite {result.rewrite_seconds * 1e3:.0f} ms"
    seconds = result.ptxas_seconds
    took = duration(seconds) if result.assembler == "ptxas" else f"{seconds * 1e3:.0f} ms"
    assembled = f"{ASSEMBLED[result.assembler]} {took}"
    return f"{rewritten}, {assembled}, {result.registers} registers, {size(result.cubin_bytes)}"


def ptxas_time(results: Sequence[BuildResult]) -> str:
    """What ptxas took for some cubins; who made them, where it made none: direct or patch."""
    by_ptxas = [result.ptxas_seconds for result in results if result.assembler == "ptxas"]
    others = sorted({result.assembler for result in results})
    return duration(sum(by_ptxas)) if by_ptxas or not others else ", ".join(others)


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
        "running": job.running,
        "ends_at": job.ends_at.isoformat() if job.ends_at else None,
        "tries": job.tries,
        "status": str(job.status),
        "claimed": job.claimed,
        "reason": job.reason,
        "skipped": [skipped_json(layer) for layer in job.skipped],
    }


def skipped_json(layer: SkippedLayer) -> dict[str, Any]:
    """A node that is not compiled, as --json gives it."""
    return {
        "name": layer.name,
        "operator": layer.operator,
        "kind": layer.kind or None,
        "reason": layer.reason,
        "weights": layer.weights,
        "multiply_adds": layer.multiply_adds,
    }


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


def plain_table(width: int) -> Table:
    """Without lines; the gaps are as wide as the terminal allows."""
    return Table(box=None, padding=(0, 2 if width >= WIDE else 1, 0, 0), pad_edge=False, header_style="bold")


def job_table(jobs: Sequence[Job], width: int) -> Text:
    """The status table: one line a job, however narrow the screen."""
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
    """One line of how many jobs are in each state; those that are claimed only are counted apart."""
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
