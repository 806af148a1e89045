"""Progress and remaining time on one line: `74/394 cubins, 2 running, ~9 min left`."""

from __future__ import annotations

from datetime import datetime

from farm.jobs.model import Job

EVERY_SECONDS = 30.0
"""Interval of progress lines in a log."""


def eta_line(done: int, total: int, running: int, left_seconds: float | None) -> str:
    """Finished and running cubins, and the remaining time if known."""
    left = "" if left_seconds is None else f", {remaining(left_seconds)}"
    return f"{done}/{total} cubins, {running} running{left}"


def job_eta_line(job: Job, now: datetime) -> str:
    """The progress of one job, with the end that its coordinator predicts."""
    left = None if job.ends_at is None else max(0.0, (job.ends_at - now).total_seconds())
    return eta_line(job.done, job.total, job.running, left)


def remaining(seconds: float) -> str:
    """Remaining time, rounded as a prediction deserves: `~40 s left`, `~9 min left`, `~2.5 h left`."""
    if seconds < 90:
        return f"~{max(5, 5 * round(seconds / 5))} s left"
    if seconds < 90 * 60:
        return f"~{round(seconds / 60)} min left"
    return f"~{seconds / 3600:.1f} h left"
