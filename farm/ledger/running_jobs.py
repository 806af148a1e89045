"""Progress of running jobs, written by their coordinators: stage, reason for waiting, prediction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, func, update

from farm.jobs.model import Build
from farm.ledger.database import Database, patient
from farm.ledger.job_states import held_by, locked
from farm.ledger.rows import parts_json
from farm.ledger.tables import builds, jobs, now


@dataclass(frozen=True)
class Outlook:
    """A coordinator's prediction for a job."""

    running: int
    """Number of templates and cubins that a tool is working on now, for this job or for it first."""
    left_seconds: float | None
    """Time until the job's end; None: unknown."""


class RunningJobs:
    """Updates of running jobs; those that `holder` has lost are skipped. Raises LedgerError if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @patient
    def set_planned(self, job_ids: Collection[str], *, holder: str) -> None:
        """Records that jobs are planned: their claims are counted anew."""
        self._set(job_ids, holder, {"claims": 0})

    @patient
    def set_stage(self, job_ids: Collection[str], stage: str, *, holder: str) -> None:
        """Sets the stage of jobs; the first stage sets their start time."""
        self._set(job_ids, holder, {"stage": stage, "started_at": func.coalesce(jobs.c.started_at, now())})

    @patient
    def set_reason(self, job_ids: Collection[str], reason: str, *, holder: str) -> None:
        """Sets the reason why jobs wait; empty: they do not wait."""
        self._set(job_ids, holder, {"reason": reason})

    @patient
    def set_outlooks(self, outlooks: Mapping[str, Outlook], *, holder: str) -> None:
        """Sets the predictions for jobs."""
        with self._database.writing() as connection:
            rows = locked(connection, and_(jobs.c.id.in_(outlooks), held_by(holder)))
            for job_id, outlook in outlooks.items():
                ends_at = None if outlook.left_seconds is None else now() + outlook.left_seconds
                values = {"running": outlook.running, "ends_at": ends_at}
                connection.execute(update(jobs).where(rows, jobs.c.id == job_id).values(values))

    @patient
    def cut(self, build: Build, total: int, *, holder: str) -> None:
        """Replaces a build's parts, and sets its job's number of cubins."""
        with self._database.writing() as connection:
            rows = locked(connection, and_(jobs.c.id == build.job, held_by(holder)))
            if connection.execute(update(jobs).where(rows).values(total=total)).rowcount:
                connection.execute(update(builds).where(builds.c.id == build.id).values(parts=parts_json(build)))

    def _set(self, job_ids: Collection[str], holder: str, values: Mapping[str, Any]) -> None:
        with self._database.writing() as connection:
            rows = locked(connection, and_(jobs.c.id.in_(job_ids), held_by(holder)))
            connection.execute(update(jobs).where(rows).values(values))
