"""Where work stands, in one line: `74/394 cubins, 2 running, ~9 min left`."""

from __future__ import annotations

from datetime import datetime

from farm.jobs.model import Job

EVERY_SECONDS = 30.0
"""How often a log says where it stands."""


def standing_line(done: int, total: int, running: int, left_seconds: float | None) -> str:
    """Cubins, what tools work on now, and when the end is expected, if that is known."""
    left = "" if left_seconds is None else f", {remaining(left_seconds)}"
    return f"{done}/{total} cubins, {running} running{left}"


def standing_of(job: Job, now: datetime) -> str:
    """Of one job, by what its coordinator predicts."""
    left = None if job.ends_at is None else max(0.0, (job.ends_at - now).total_seconds())
    return standing_line(job.done, job.total, job.running, left)


def remaining(seconds: float) -> str:
    """As exact as a prediction is: `~40 s left`, `~9 min left`, `~2.5 h left`."""
    if seconds < 90:
        return f"~{max(5, 5 * round(seconds / 5))} s left"
    if seconds < 90 * 60:
        return f"~{round(seconds / 60)} min left"
    return f"~{seconds / 3600:.1f} h left"
