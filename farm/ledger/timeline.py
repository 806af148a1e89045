"""What was made or found for the jobs of a submission, and when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine, select

from farm.jobs.model import Outcome
from farm.ledger.database import reading
from farm.ledger.tables import jobs, results, template_runs


@dataclass(frozen=True)
class TimedRun:
    """One run of nvcc, or a cubin: rewritten and assembled, found, or refused."""

    job: str
    """Of a template the first of those that waited for it."""
    is_template: bool
    outcome: Outcome
    ended_at: datetime
    """When the ledger heard of it, by its clock."""
    seconds: float
    """What the tools took for it, of a hit when it was made."""


class Timeline:
    """Raises LedgerError where the database cannot be used."""

    def __init__(self, engine: Engine, wait_seconds: float) -> None:
        self._engine = engine
        self._wait_seconds = wait_seconds

    def runs(self, submission: str) -> list[TimedRun]:
        """Of all its jobs, in the order in which they ended."""
        ids = select(jobs.c.id).where(jobs.c.submission == submission)
        templates = select(template_runs).where(template_runs.c.job.in_(ids))
        columns = (results.c.job, results.c.outcome, results.c.recorded_at)
        seconds = (results.c.rewrite_seconds + results.c.ptxas_seconds).label("seconds")
        cubins = select(*columns, seconds).where(results.c.job.in_(ids))
        with reading(self._engine, self._wait_seconds) as connection:
            runs = [
                TimedRun(row.job, True, Outcome.BUILT, datetime.fromtimestamp(row.recorded_at, UTC), row.seconds)
                for row in connection.execute(templates)
            ]
            runs += [
                TimedRun(
                    row.job, False, Outcome(row.outcome), datetime.fromtimestamp(row.recorded_at, UTC), row.seconds
                )
                for row in connection.execute(cubins)
            ]
        return sorted(runs, key=lambda run: run.ended_at)
