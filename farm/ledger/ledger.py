"""Every query of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Text, and_, cast, func, insert, or_, select, update

from farm.errors import LedgerError, NotFoundError, UsageError
from farm.jobs import ALLOWED_MOVES, Build, BuildResult, Event, Job, NewJob, NewSubmission, Status
from farm.ledger.engine import insert_or_replace, one_at_a_time, reading, writing
from farm.ledger.neighbours import Neighbours
from farm.ledger.retention import Retention
from farm.ledger.rows import build_of_row, build_row, event_of_row, job_of_row, job_row, result_of_row, result_row
from farm.ledger.statistics import StatisticsBook
from farm.ledger.tables import builds, events, jobs, keys, now, results, submissions

_RESULT_KEY = ("build", "arch", "part")
_RESULT_COLUMNS = tuple(column.name for column in results.columns if column.name not in _RESULT_KEY)
_JOB = select(jobs, submissions.c.submitter, now().label("now")).join(
    submissions, jobs.c.submission == submissions.c.id
)
_FREE = or_(jobs.c.status == Status.PENDING, and_(jobs.c.status == Status.RUNNING, jobs.c.lease_until < now()))
"""Nobody has it, or its coordinator let the lease end."""


class Ledger:
    """Jobs, builds and results. Raises LedgerError where the database cannot be used."""

    def __init__(self, engine: Engine, wait_seconds: float = 0) -> None:
        self._engine = engine
        self._wait_seconds = wait_seconds

    def waiting(self, seconds: float) -> Ledger:
        """The same ledger, each of whose calls waits that long for a server that is away."""
        return Ledger(self._engine, seconds)

    def _reading(self) -> AbstractContextManager[Connection]:
        return reading(self._engine, self._wait_seconds)

    def _writing(self) -> AbstractContextManager[Connection]:
        return writing(self._engine, self._wait_seconds)

    @property
    def retention(self) -> Retention:
        """What jobs refer to, and how old ones are forgotten."""
        return Retention(self._engine, self._wait_seconds)

    @property
    def statistics(self) -> StatisticsBook:
        """What the cache saved."""
        return StatisticsBook(self._engine, self._wait_seconds)

    @property
    def neighbours(self) -> Neighbours:
        """Keys like another."""
        return Neighbours(self._engine, self._wait_seconds)

    def close(self) -> None:
        """Gives the database's connections back."""
        self._engine.dispose()

    def record_submission(self, submission: NewSubmission) -> list[Job]:
        """Writes a submission's jobs and builds, in one transaction.

        Where an unfinished job with the same request stands, and no coordinator has it, that one is given instead.
        """
        with self._writing() as connection:
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
        by_id = {job.id: job for job in self._jobs_by_id(list(standing.values()))}
        return [by_id[standing[job.request_digest]] for job in submission.jobs]

    def claim(self, job_id: str, coordinator: str, lease_seconds: float) -> bool:
        """Takes a job that is pending, or whose coordinator let its lease end; False if somebody alive has it."""
        return bool(self.claim_all([job_id], coordinator, lease_seconds))

    def claim_all(self, job_ids: Sequence[str], coordinator: str, lease_seconds: float) -> list[str]:
        """Takes those of the jobs that are free, oldest first; what another takes at this moment is not waited for."""
        taken = {
            "status": Status.RUNNING,
            "reason": "",
            "coordinator": coordinator,
            "lease_until": now() + lease_seconds,
            "tries": jobs.c.tries + 1,
            "started_at": now(),
            "finished_at": None,
        }
        with self._writing() as connection:
            # SQLite knows no row locks, and needs none: this transaction is the only one that writes.
            free = select(jobs.c.id).where(jobs.c.id.in_(set(job_ids)), _FREE).order_by(jobs.c.number)
            found = list(connection.execute(free.with_for_update(skip_locked=True, key_share=True)).scalars())
            if found:
                connection.execute(update(jobs).where(jobs.c.id.in_(found)).values(taken))
            return found

    def extend_lease(self, coordinator: str, lease_seconds: float) -> None:
        """The heartbeat of a coordinator, for all its jobs."""
        mine = and_(jobs.c.coordinator == coordinator, jobs.c.status == Status.RUNNING)
        with self._writing() as connection:
            rows = _locked(connection, mine)
            connection.execute(update(jobs).where(rows).values(lease_until=now() + lease_seconds))

    def release(self, coordinator: str, reason: str) -> None:
        """Gives back all that a coordinator runs: it is pending again, for that reason."""
        mine = and_(jobs.c.coordinator == coordinator, jobs.c.status == Status.RUNNING)
        with self._writing() as connection:
            connection.execute(update(jobs).where(_locked(connection, mine)).values(_state(Status.PENDING, reason)))

    def finish(self, job_id: str, status: Status, reason: str) -> None:
        """Ends a job. Raises LedgerError for a move that a job cannot make."""
        self._move(job_id, status, reason)

    def _move(self, job_id: str, status: Status, reason: str) -> None:
        sources = [source for source, targets in ALLOWED_MOVES.items() if status in targets]
        with self._writing() as connection:
            statement = (
                update(jobs).where(jobs.c.id == job_id, jobs.c.status.in_(sources)).values(_state(status, reason))
            )
            if connection.execute(statement).rowcount == 1:
                return
            found = connection.execute(select(jobs.c.status).where(jobs.c.id == job_id)).scalar()
        if found is None:
            raise NotFoundError(f"there is no job {job_id}")
        raise LedgerError(f"job {job_id} is {found} and cannot become {status}")

    def set_stage(self, job_id: str, stage: str) -> None:
        """What runs of the job now."""
        with self._writing() as connection:
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(stage=stage))

    def record_results(self, batch: Sequence[BuildResult]) -> None:
        """Writes results, in place of older ones of the same builds, and each job's counts with them."""
        if not batch:
            return
        with self._writing() as connection:
            ids = {result.build for result in batch}
            owners = select(builds.c.id, builds.c.job).where(builds.c.id.in_(ids))
            job_of = {row.id: row.job for row in connection.execute(owners)}
            statement = insert_or_replace(self._engine, results, _RESULT_KEY, _RESULT_COLUMNS)
            at = connection.execute(select(now())).scalar_one()
            connection.execute(statement, [result_row(result, job_of[result.build], at) for result in batch])
            mine = results.c.job == jobs.c.id
            count = select(func.count()).select_from(results).where(mine)
            counts = {
                "done": count.scalar_subquery(),
                "hits": count.where(results.c.outcome == "hit").scalar_subquery(),
            }
            rows = _locked(connection, jobs.c.id.in_(set(job_of.values())))
            connection.execute(update(jobs).where(rows).values(counts))

    def forget_results(self, job_id: str) -> None:
        """Drops the results of an earlier try, before a job runs again."""
        with self._writing() as connection:
            connection.execute(results.delete().where(results.c.job == job_id))
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(done=0, hits=0))

    def record_keys(self, stage: str, fields: Mapping[str, Mapping[str, str]]) -> None:
        """Keeps what went into keys, by their digests; a digest that is there stays."""
        if fields:
            # Sorted: of two writers with the same keys, one waits for the other, and neither for ever.
            rows = [{"digest": digest, "stage": stage, "fields": dict(fields[digest])} for digest in sorted(fields)]
            with self._writing() as connection:
                connection.execute(insert_or_replace(self._engine, keys, ("digest",), ()), rows)

    def key_fields(self, digest: str) -> dict[str, str] | None:
        """What went into a key."""
        with self._reading() as connection:
            return connection.execute(select(keys.c.fields).where(keys.c.digest == digest)).scalar()

    def jobs(
        self,
        *,
        states: Sequence[Status] | None = None,
        name: str | None = None,
        model: str | None = None,
        arch: str | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Jobs, newest first; `name` and `model` are parts of the text, in either case; `arch` is whole."""
        query = _JOB.order_by(jobs.c.number.desc())
        if states is not None:
            query = query.where(jobs.c.status.in_(states))
        if name is not None:
            query = query.where(jobs.c.name.icontains(name, autoescape=True))
        if model is not None:
            query = query.where(jobs.c.model.icontains(model, autoescape=True))
        if arch is not None:
            # The options are JSON text; an architecture's quotes keep sm_90 apart from sm_90a.
            query = query.where(cast(jobs.c.options, Text).contains(f'"{arch}"', autoescape=True))
        with self._reading() as connection:
            return [job_of_row(row) for row in connection.execute(query.limit(limit) if limit else query)]

    def counts(self) -> dict[Status, int]:
        """How many jobs are in each state."""
        query = select(jobs.c.status, func.count()).group_by(jobs.c.status)
        with self._reading() as connection:
            return {Status(status): count for status, count in connection.execute(query)}

    def job(self, prefix: str) -> Job:
        """The job whose id begins so, or the `latest`. Raises NotFoundError, or UsageError naming the candidates."""
        query = _JOB.order_by(jobs.c.number.desc())
        if prefix != "latest":
            query = query.where(jobs.c.id.startswith(prefix, autoescape=True))
        with self._reading() as connection:
            found = [job_of_row(row) for row in connection.execute(query.limit(1 if prefix == "latest" else 5))]
        if not found:
            missing = "there are no jobs yet" if prefix == "latest" else f"there is no job '{prefix}'"
            raise NotFoundError(f"{missing}: farm status lists them")
        if len(found) > 1 and found[0].id != prefix:
            ids = ", ".join(job.id for job in found)
            raise UsageError(f"'{prefix}' begins more than one job's id ({ids}): give more of it")
        return found[0]

    def _jobs_by_id(self, ids: Sequence[str]) -> list[Job]:
        with self._reading() as connection:
            return [job_of_row(row) for row in connection.execute(_JOB.where(jobs.c.id.in_(set(ids))))]

    def builds(self, job_id: str) -> list[Build]:
        """The layers of a job, in graph order."""
        query = select(builds).where(builds.c.job == job_id).order_by(builds.c.position)
        with self._reading() as connection:
            return [build_of_row(row) for row in connection.execute(query)]

    def results(self, job_id: str) -> list[BuildResult]:
        """What came of a job's builds, so far."""
        of_job = select(results).where(results.c.job == job_id)
        query = of_job.order_by(results.c.build, results.c.arch, results.c.part)
        with self._reading() as connection:
            return [result_of_row(row) for row in connection.execute(query)]

    def add_event(self, job_id: str, level: str, text: str) -> None:
        """A line for the job's log."""
        self.add_events([(job_id, level, text)])

    def add_events(self, lines: Sequence[tuple[str, str, str]]) -> None:
        """Lines for the logs of jobs: job, level and text of each, in this order."""
        if lines:
            with self._writing() as connection:
                at = connection.execute(select(now())).scalar_one()
                rows = [{"job": job_id, "at": at, "level": level, "text": text} for job_id, level, text in lines]
                connection.execute(insert(events), rows)

    def events(self, job_id: str, after_id: int = 0) -> list[Event]:
        """A job's log, oldest first, from after an event."""
        query = select(events).where(events.c.job == job_id, events.c.id > after_id).order_by(events.c.id)
        with self._reading() as connection:
            return [event_of_row(row) for row in connection.execute(query)]


def _locked(connection: Connection, which: ColumnElement[bool]) -> ColumnElement[bool]:
    """The same rows of jobs, locked in one order by all who change several: else two could wait for one another."""
    numbers = select(jobs.c.number).where(which).order_by(jobs.c.number).with_for_update(key_share=True)
    return jobs.c.number.in_(list(connection.execute(numbers).scalars()))


def _state(status: Status, reason: str) -> dict[str, Any]:
    """What a job's row says once it is no longer running, or again pending."""
    values: dict[str, Any] = {
        "status": status,
        "reason": reason,
        "stage": "",
        "coordinator": None,
        "lease_until": None,
    }
    if status.final:
        values["finished_at"] = now()
    elif status is Status.PENDING:
        values |= {"started_at": None, "finished_at": None}
    return values
