"""What a coordinator says of the jobs that it runs: where each stands, and when it will end."""

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
    """How a job goes on, as its coordinator predicts."""

    running: int
    """Number of templates and cubins that a tool is working on now, for this job or for it first."""
    left_seconds: float | None
    """Until its end; None: it cannot be told."""


class RunningJobs:
    """Updates to running jobs; jobs that `holder` has lost are left alone. Raises LedgerError if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @patient
    def set_stage(self, job_ids: Collection[str], stage: str, *, holder: str) -> None:
        """What is done for these jobs now; with the first stage, they begin."""
        self._set(job_ids, holder, {"stage": stage, "started_at": func.coalesce(jobs.c.started_at, now())})

    @patient
    def set_reason(self, job_ids: Collection[str], reason: str, *, holder: str) -> None:
        """Why they wait; empty: they go on."""
        self._set(job_ids, holder, {"reason": reason})

    @patient
    def set_outlooks(self, outlooks: Mapping[str, Outlook], *, holder: str) -> None:
        """What is predicted of each job."""
        with self._database.writing() as connection:
            rows = locked(connection, and_(jobs.c.id.in_(outlooks), held_by(holder)))
            for job_id, outlook in outlooks.items():
                ends_at = None if outlook.left_seconds is None else now() + outlook.left_seconds
                said = {"running": outlook.running, "ends_at": ends_at}
                connection.execute(update(jobs).where(rows, jobs.c.id == job_id).values(said))

    @patient
    def cut(self, build: Build, total: int, *, holder: str) -> None:
        """A build's parts are others now, and its job has so many cubins."""
        with self._database.writing() as connection:
            rows = locked(connection, and_(jobs.c.id == build.job, held_by(holder)))
            if connection.execute(update(jobs).where(rows).values(total=total)).rowcount:
                connection.execute(update(builds).where(builds.c.id == build.id).values(parts=parts_json(build)))

    def _set(self, job_ids: Collection[str], holder: str, said: Mapping[str, Any]) -> None:
        with self._database.writing() as connection:
            rows = locked(connection, and_(jobs.c.id.in_(job_ids), held_by(holder)))
            connection.execute(update(jobs).where(rows).values(said))
