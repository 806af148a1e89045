"""The ledger: queries of jobs, builds, results and logs; other tables have classes of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Unpack

from sqlalchemy import ColumnElement, and_, func, insert, or_, select, true, update

from farm.errors import LedgerError, NotFoundError, UnreadableJobError, UsageError
from farm.jobs.model import (
    ALLOWED_MOVES,
    JOB_FORMAT,
    Build,
    BuildResult,
    Event,
    Job,
    JobSet,
    NewJob,
    NewSubmission,
    Status,
)
from farm.ledger.coordinators import Coordinators
from farm.ledger.database import Database, one_at_a_time, patient
from farm.ledger.filters import CLAIMED, Which, chosen, no_such_job
from farm.ledger.job_counters import drop_counters, keep_counters
from farm.ledger.job_states import FINAL, held_by, locked, state_values
from farm.ledger.key_neighbours import Neighbours
from farm.ledger.leases import Leases
from farm.ledger.qualification import QualificationTable
from farm.ledger.retention import KEY_FRESH_SECONDS, Retention
from farm.ledger.rows import (
    build_of_row,
    build_row,
    event_of_row,
    job_of_row,
    job_row,
    result_of_row,
    result_row,
    unreadable_text,
)
from farm.ledger.running_jobs import RunningJobs
from farm.ledger.statistics import StatisticsTable
from farm.ledger.tables import builds, coordinators, events, jobs, keys, now, results, submissions
from farm.ledger.tuning import TuningTable

_RESULT_KEY = ("build", "arch", "part")
_RESULT_COLUMNS = tuple(column.name for column in results.columns if column.name not in _RESULT_KEY)
_SERVED_FORMAT = (
    select(func.max(coordinators.c.format)).where(coordinators.c.serves, coordinators.c.lease_until >= now())
).scalar_subquery()
"""Newest job format that a live serving coordinator reads."""
_JOB = select(jobs, submissions.c.submitter, now().label("now"), _SERVED_FORMAT.label("served_format")).join(
    submissions, jobs.c.submission == submissions.c.id
)
_FREE = and_(
    jobs.c.format <= JOB_FORMAT,
    or_(jobs.c.status == Status.PENDING, and_(jobs.c.status == Status.RUNNING, jobs.c.lease_until < now())),
)
"""The condition for jobs that this version may claim: pending, or with an expired lease, and not of a newer format."""


class Ledger:
    """Jobs, builds and results. Raises LedgerError if the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def waiting(self, seconds: float) -> Ledger:
        """This ledger, with calls that wait up to that long for a server that is unreachable."""
        return Ledger(Database(self._database.engine, seconds))

    @property
    def coordinators(self) -> Coordinators:
        """Live coordinators and their in-flight keys."""
        return Coordinators(self._database)

    @property
    def running(self) -> RunningJobs:
        """Progress of running jobs, written by their coordinators."""
        return RunningJobs(self._database)

    @property
    def tuning(self) -> TuningTable:
        """Tuning records."""
        return TuningTable(self._database)

    @property
    def qualifications(self) -> QualificationTable:
        """Qualification records, which belong to no job either."""
        return QualificationTable(self._database)

    @property
    def retention(self) -> Retention:
        """References of jobs to the store, and removal of old jobs."""
        return Retention(self._database)

    @property
    def leases(self) -> Leases:
        """Leases of maintenance."""
        return Leases(self._database)

    @property
    def statistics(self) -> StatisticsTable:
        """Cache hits, and the time that they saved."""
        return StatisticsTable(self._database)

    @property
    def neighbours(self) -> Neighbours:
        """Keys similar to another one, and their uses."""
        return Neighbours(self._database)

    def close(self) -> None:
        """Closes the database's connections."""
        self._database.engine.dispose()

    def record_submission(self, submission: NewSubmission) -> list[Job]:
        """Writes a submission's jobs and builds in one transaction, and returns its jobs.

        An unfinished job with the same request digest that no coordinator holds takes the place of a new one.
        """
        with self._database.writing() as connection:
            one_at_a_time(connection, submissions)
            requests = {job.request_digest for job in submission.jobs}
            same = select(jobs.c.request_digest, jobs.c.id).where(jobs.c.request_digest.in_(requests), _FREE)
            standing = {row.request_digest: row.id for row in connection.execute(same.order_by(jobs.c.number))}
            new: list[NewJob] = []
            for job in submission.jobs:
                if job.request_digest not in standing:
                    standing[job.request_digest] = job.id
                    new.append(job)
            if new:
                at = connection.execute(select(now())).scalar_one()
                row = {"id": submission.id, "submitter": submission.submitter, "submitted_at": at}
                connection.execute(insert(submissions), row)
                connection.execute(insert(jobs), [job_row(job, submission.id, at) for job in new])
                rows = [build_row(build, job.id) for job in new for build in job.builds]
                if rows:
                    connection.execute(insert(builds), rows)
        by_id = self.jobs_by_id(list(standing.values()))
        return [by_id[standing[job.request_digest]] for job in submission.jobs]

    @patient
    def claim_all(
        self, job_ids: Sequence[str], coordinator: str, lease_seconds: float, *, limit: int | None = None
    ) -> list[str]:
        """Claims the free ones of these jobs, oldest first, and returns them. Skips jobs that others are claiming.

        A job whose last claim did not get it planned is claimed alone, so that it can harm no other job.
        """
        return self._claim(jobs.c.id.in_(set(job_ids)), coordinator, lease_seconds, limit)

    @patient
    def claim_next(self, coordinator: str, lease_seconds: float, limit: int) -> list[str]:
        """Claims up to `limit` free jobs of any submitter, oldest first, and returns them."""
        with self._database.reading() as connection:
            # Usually no job is free, and then no writing transaction is needed.
            if connection.execute(select(jobs.c.id).where(_FREE).limit(1)).first() is None:
                return []
        return self._claim(_FREE, coordinator, lease_seconds, limit)

    def _claim(
        self, which: ColumnElement[bool], coordinator: str, lease_seconds: float, limit: int | None
    ) -> list[str]:
        taken = {
            "status": Status.RUNNING,
            "reason": "",
            "fault": "",
            "coordinator": coordinator,
            "lease_until": now() + lease_seconds,
            "tries": jobs.c.tries + 1,
            "claims": jobs.c.claims + 1,
            "started_at": None,
            "finished_at": None,
        }
        with self._database.writing() as connection:
            # SQLite has no row locks and needs none: only one transaction writes at a time.
            free = select(jobs.c.id, jobs.c.claims).where(which, _FREE).order_by(jobs.c.number).limit(limit)
            rows = connection.execute(free.with_for_update(skip_locked=True, key_share=True)).all()
            found = [row.id for row in takewhile(lambda row: not row.claims, rows)] or [row.id for row in rows[:1]]
            if found:
                connection.execute(update(jobs).where(jobs.c.id.in_(found)).values(taken))
            return found

    @patient
    def extend_lease(self, coordinator: str, lease_seconds: float) -> None:
        """Extends the lease of all jobs of a coordinator."""
        with self._database.writing() as connection:
            rows = locked(connection, held_by(coordinator))
            connection.execute(update(jobs).where(rows).values(lease_until=now() + lease_seconds))

    @patient
    def held(self, coordinator: str) -> set[str]:
        """Ids of the jobs that a coordinator holds: claimed, and not taken over or cancelled since."""
        with self._database.reading() as connection:
            return set(connection.execute(select(jobs.c.id).where(held_by(coordinator))).scalars())

    @patient
    def release(self, coordinator: str, reason: str = "") -> None:
        """Returns all jobs of a coordinator to PENDING; `reason` says why, if not because it was stopped."""
        with self._database.writing() as connection:
            rows = locked(connection, held_by(coordinator))
            values = state_values(Status.PENDING, reason) | {"claims": 0}
            connection.execute(update(jobs).where(rows).values(values))

    @patient
    def return_unplanned(self, job_id: str, reason: str, *, holder: str) -> None:
        """Returns a job to PENDING that its coordinator could not plan; its claims stay counted."""
        mine = and_(jobs.c.id == job_id, held_by(holder))
        with self._database.writing() as connection:
            connection.execute(update(jobs).where(mine).values(state_values(Status.PENDING, reason)))

    @patient
    def finish(self, job_id: str, status: Status, reason: str, *, holder: str | None = None, fault: str = "") -> bool:
        """Ends a job; False if `holder` is given and no longer holds it.

        Raises LedgerError for a move that is not allowed.
        """
        sources = [source for source, targets in ALLOWED_MOVES.items() if status in targets]
        mine = and_(jobs.c.id == job_id, jobs.c.status.in_(sources), true() if holder is None else held_by(holder))
        with self._database.writing() as connection:
            values = state_values(status, reason) | {"fault": fault}
            if connection.execute(update(jobs).where(mine).values(values)).rowcount == 1:
                keep_counters(connection, self._database, [job_id])
                return True
            found = connection.execute(select(jobs.c.status).where(jobs.c.id == job_id)).scalar()
        if holder is not None:
            return False
        if found is None:
            raise NotFoundError(f"no such job: {job_id}")
        raise LedgerError(f"job {job_id} is {found} and cannot become {status}")

    def cancel(self, which: JobSet, reason: str) -> list[str]:
        """Cancels the unfinished ones of these jobs in one statement and returns them; their coordinators notice."""
        return self._move_all(which, (Status.PENDING, Status.RUNNING), Status.CANCELLED, reason)

    def retry(self, which: JobSet, reason: str) -> list[str]:
        """Returns the unsuccessful ones of these jobs to PENDING and returns their ids."""
        return self._move_all(which, (Status.FAILED, Status.CRASHED, Status.CANCELLED), Status.PENDING, reason)

    def _move_all(self, which: JobSet, sources: tuple[Status, ...], target: Status, reason: str) -> list[str]:
        chosen: list[ColumnElement[bool]] = [jobs.c.status.in_(sources)]
        if which.ids is not None:
            chosen.append(jobs.c.id.in_(which.ids))
        if which.submission is not None:
            chosen.append(jobs.c.submission == which.submission)
        rows = select(jobs.c.number).where(*chosen).order_by(jobs.c.number).with_for_update(key_share=True)
        values = state_values(target, reason) | {"fault": "", "claims": 0}
        statement = update(jobs).where(jobs.c.number.in_(rows), jobs.c.status.in_(sources)).values(values)
        with self._database.writing() as connection:
            moved = list(connection.execute(statement.returning(jobs.c.id)).scalars())
            if target.final:
                keep_counters(connection, self._database, moved)
            return moved

    @patient
    def record_results(self, batch: Sequence[BuildResult], *, holder: str | None = None) -> None:
        """Writes results, replacing older ones of the same builds, and updates the counts of their jobs.

        If `holder` is given, results of jobs that it no longer holds are dropped.
        """
        if not batch:
            return
        with self._database.writing() as connection:
            owners = select(builds.c.id, builds.c.job).where(builds.c.id.in_({result.build for result in batch}))
            job_of = {row.id: row.job for row in connection.execute(owners)}
            whose = jobs.c.id.in_(set(job_of.values()))
            # Locked before anything is written, so that no coordinator takes a job over in between.
            rows = locked(connection, whose if holder is None else and_(whose, held_by(holder)))
            mine = set(connection.execute(select(jobs.c.id).where(rows)).scalars())
            at = connection.execute(select(now())).scalar_one()
            written = [result_row(each, job_of[each.build], at) for each in batch if job_of[each.build] in mine]
            if written:
                connection.execute(self._database.insert_or_replace(results, _RESULT_KEY, _RESULT_COLUMNS), written)
                of_job = select(func.count()).select_from(results).where(results.c.job == jobs.c.id)
                done, hits = of_job.where(results.c.outcome != "failed"), of_job.where(results.c.outcome == "hit")
                counts = {"done": done.scalar_subquery(), "hits": hits.scalar_subquery()}
                connection.execute(update(jobs).where(rows).values(counts))
                drop_counters(connection, mine)

    @patient
    def forget_results(self, job_id: str, *, holder: str | None = None) -> None:
        """Deletes the results of a job's earlier try, before it runs again."""
        with self._database.writing() as connection:
            mine = and_(jobs.c.id == job_id, true() if holder is None else held_by(holder))
            rows = locked(connection, mine)
            if connection.execute(update(jobs).where(rows).values(done=0, hits=0)).rowcount:
                connection.execute(results.delete().where(results.c.job == job_id))
                drop_counters(connection, [job_id])

    @patient
    def record_keys(self, stage: str, fields: Mapping[str, Mapping[str, str]]) -> None:
        """Records the fields of keys by their digests; existing rows only become younger."""
        if not fields:
            return
        stale = keys.c.recorded_at < now() - KEY_FRESH_SECONDS
        statement = self._database.insert_or_replace(keys, ("digest",), ("recorded_at",), where=stale)
        with self._database.writing() as connection:
            at = connection.execute(select(now())).scalar_one()
            # Sorted, so that two writers of the same keys do not deadlock.
            rows = [
                {"digest": digest, "stage": stage, "fields": dict(fields[digest]), "recorded_at": at}
                for digest in sorted(fields)
            ]
            connection.execute(statement, rows)

    def key_fields(self, digest: str) -> dict[str, str] | None:
        """The fields of a key; None if it is unknown."""
        with self._database.reading() as connection:
            return connection.execute(select(keys.c.fields).where(keys.c.digest == digest)).scalar()

    def jobs(self, *, limit: int | None = None, **which: Unpack[Which]) -> list[Job]:
        """The jobs of a filter, newest first."""
        query = _JOB.where(chosen(which)).order_by(jobs.c.number.desc())
        with self._database.reading() as connection:
            return [job_of_row(row) for row in connection.execute(query.limit(limit) if limit else query)]

    def counts(self, **which: Unpack[Which]) -> dict[Status, int]:
        """Number of jobs in each state."""
        query = select(jobs.c.status, func.count()).where(chosen(which)).group_by(jobs.c.status)
        with self._database.reading() as connection:
            return {Status(status): count for status, count in connection.execute(query)}

    def count_claimed(self, **which: Unpack[Which]) -> int:
        """Number of running jobs that are claimed but not started."""
        query = select(func.count()).select_from(jobs).where(CLAIMED, chosen(which))
        with self._database.reading() as connection:
            return connection.execute(query).scalar_one()

    @patient
    def job(self, prefix: str) -> Job:
        """The job whose id has that prefix, or the `latest`. Raises NotFoundError, or UsageError if it is ambiguous."""
        query = _JOB.order_by(jobs.c.number.desc())
        if prefix != "latest":
            query = query.where(jobs.c.id.startswith(prefix, autoescape=True))
        with self._database.reading() as connection:
            found = [job_of_row(row) for row in connection.execute(query.limit(1 if prefix == "latest" else 5))]
        if not found:
            raise NotFoundError(no_such_job(prefix))
        if len(found) > 1 and found[0].id != prefix:
            ids = ", ".join(job.id for job in found)
            raise UsageError(f"ambiguous job id '{prefix}': it matches {ids}. Give more digits")
        return found[0]

    @patient
    def jobs_by_id(self, ids: Collection[str]) -> dict[str, Job]:
        """Jobs by their full ids; unknown ids are left out."""
        with self._database.reading() as connection:
            found = connection.execute(_JOB.where(jobs.c.id.in_(set(ids))))
            return {row.id: job_of_row(row) for row in found}

    @patient
    def unfinished(self, ids: Collection[str]) -> set[str]:
        """The given ids whose jobs have not ended; cheap enough for a loop that waits for them."""
        query = select(jobs.c.id).where(jobs.c.id.in_(set(ids)), jobs.c.status.not_in(FINAL))
        with self._database.reading() as connection:
            return set(connection.execute(query).scalars())

    def check_submission(self, submission: str) -> None:
        """Raises NotFoundError if there is no such submission."""
        query = select(submissions.c.id).where(submissions.c.id == submission)
        with self._database.reading() as connection:
            if connection.execute(query).first() is None:
                raise NotFoundError(f"no such submission: '{submission}'. farm status --json lists them")

    @patient
    def builds(self, job_id: str) -> list[Build]:
        """The builds of a job in graph order; a layer has one build for each of its tilings.

        Raises UnreadableJobError if another version wrote what this one cannot read.
        """
        query = select(builds).where(builds.c.job == job_id).order_by(builds.c.position, builds.c.id)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        try:
            return [build_of_row(row) for row in rows]
        except Exception as error:  # another version may have written anything
            raise UnreadableJobError(unreadable_text(job_id, error)) from error

    def results(self, job_id: str) -> list[BuildResult]:
        """The results of a job's builds so far."""
        of_job = select(results).where(results.c.job == job_id)
        query = of_job.order_by(results.c.build, results.c.arch, results.c.part)
        with self._database.reading() as connection:
            return [result_of_row(row) for row in connection.execute(query)]

    def add_event(self, job_id: str, level: str, text: str) -> None:
        """Appends a line to a job's log."""
        self.add_events([(job_id, level, text)])

    @patient
    def add_events(self, lines: Sequence[tuple[str, str, str]]) -> None:
        """Appends lines to the logs of jobs. A line is a job's id, a level and a text."""
        if lines:
            with self._database.writing() as connection:
                at = connection.execute(select(now())).scalar_one()
                rows = [{"job": job_id, "at": at, "level": level, "text": text} for job_id, level, text in lines]
                connection.execute(insert(events), rows)

    def events(self, job_id: str, after_id: int = 0) -> list[Event]:
        """A job's log after an event, oldest first."""
        query = select(events).where(events.c.job == job_id, events.c.id > after_id).order_by(events.c.id)
        with self._database.reading() as connection:
            return [event_of_row(row) for row in connection.execute(query)]
