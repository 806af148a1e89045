"""References of jobs to the store, and removal of old jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Select, and_, delete, exists, func, or_, select, union

from farm.jobs.model import Outcome, Status
from farm.ledger.database import Database, one_at_a_time
from farm.ledger.job_states import FINAL
from farm.ledger.tables import builds, events, job_counters, jobs, keys, marks, now, results, submissions, template_runs
from farm.store.contract import digests_in

JOBS_AT_ONCE = 200
"""Jobs deleted in one transaction, which limits how long others wait."""
ROWS_AT_ONCE = 1000
"""Rows of a stream that are in memory together."""
KEY_FRESH_SECONDS = 3600.0
"""Age below which recording a key again does not make it younger, which usually saves a write."""
_BOUNDS = [*(f"{first:02x}" for first in range(256)), "g"]
"""Bounds of the ranges of keys of which one transaction deletes the unused ones."""


class ReferenceKind(StrEnum):
    """Kinds of names in the store."""

    KEY = "key"
    """Key of an action record."""
    BLOB = "blob"
    """Digest of a network, a cubin or PTX, or one in the command of a failure."""
    WEIGHTS = "weights"
    """Digest of a layer's weights."""


@dataclass(frozen=True)
class Reference:
    """Something in the store that jobs of the ledger refer to."""

    kind: ReferenceKind
    name: str


class Retention:
    """References and removal of jobs. Raises LedgerError if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def references(self) -> Iterator[Reference]:
        """The references of all jobs, in any state, as a stream; a name may come more than once."""
        queries: dict[ReferenceKind, Select[Any] | CompoundSelect[Any]] = {
            ReferenceKind.KEY: union(select(results.c.template_key), select(results.c.cubin_key)),
            ReferenceKind.BLOB: union(select(results.c.cubin), select(results.c.ptx), select(jobs.c.network)),
            ReferenceKind.WEIGHTS: select(builds.c.weights).distinct(),
        }
        streamed = {"yield_per": ROWS_AT_ONCE}
        with self._database.reading() as connection:
            for kind, query in queries.items():
                found = connection.execute(query, execution_options=streamed).scalars()
                yield from (Reference(kind, name) for name in found if name is not None)
            failed = select(results.c.command).where(results.c.outcome == Outcome.FAILED)
            for command in connection.execute(failed, execution_options=streamed).scalars():
                yield from (Reference(ReferenceKind.BLOB, digest) for digest in digests_in(command))

    def users(self, name: str) -> list[str]:
        """Ids of the jobs that refer to a record's key or a blob's digest."""
        columns = (results.c.template_key, results.c.cubin_key, results.c.cubin, results.c.ptx)
        failed = (results.c.outcome == Outcome.FAILED) & results.c.command.contains(name, autoescape=True)
        query = union(
            select(builds.c.job).where(builds.c.weights == name),
            select(jobs.c.id).where(jobs.c.network == name),
            select(results.c.job).where(or_(failed, *(column == name for column in columns))),
        )
        with self._database.reading() as connection:
            return sorted(connection.execute(query).scalars())

    def made(self, digest: str) -> bool:
        """Whether a blob is the cubin or the PTX of a result, which is built again if it is missed."""
        is_made = select(results.c.build).where(or_(results.c.cubin == digest, results.c.ptx == digest)).limit(1)
        with self._database.reading() as connection:
            return connection.execute(is_made).first() is not None

    def count_older(self, older_than_seconds: float) -> int:
        """Number of jobs that ended longer ago than that."""
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).where(_ended(older_than_seconds))).scalar_one()

    def prune(self, older_than_seconds: float) -> Iterator[int]:
        """Deletes jobs that ended longer ago than that, with all their rows, and yields the number of each batch.

        It may be stopped between batches: each job is deleted whole.
        """
        while removed := self._prune_some(older_than_seconds):
            yield removed
        self._remove_submissions()
        for first, end in pairwise(_BOUNDS):
            self._remove_keys(first, end, older_than_seconds)

    def take_turn(self, name: str, every_seconds: float) -> bool:
        """Whether the caller shall do periodic work now, which one process does at most once per interval."""
        with self._database.writing() as connection:
            one_at_a_time(connection, marks)
            last = select(marks.c.at).where(marks.c.name == name, marks.c.at > now() - every_seconds)
            if connection.execute(last).first() is not None:
                return False
            at = connection.execute(select(now())).scalar_one()
            statement = self._database.insert_or_replace(marks, ("name",), ("at",))
            connection.execute(statement, [{"name": name, "at": at}])
            return True

    def _prune_some(self, older_than_seconds: float) -> int:
        with self._database.writing() as connection:
            old = select(jobs.c.id).where(_ended(older_than_seconds)).order_by(jobs.c.number).limit(JOBS_AT_ONCE)
            # Jobs that another transaction is changing, such as `farm retry`, are skipped.
            found = list(connection.execute(old.with_for_update(skip_locked=True)).scalars())
            for table in (events, job_counters, results, builds, template_runs):
                connection.execute(delete(table).where(table.c.job.in_(found)))
            connection.execute(delete(jobs).where(jobs.c.id.in_(found)))
            return len(found)

    def _remove_submissions(self) -> None:
        """Deletes submissions without jobs."""
        with self._database.writing() as connection:
            one_at_a_time(connection, submissions)
            alone = ~exists().where(jobs.c.submission == submissions.c.id)
            connection.execute(delete(submissions).where(alone))

    def _remove_keys(self, first: str, end: str, older_than_seconds: float) -> None:
        """Deletes unused keys in a range that are older than that and than every running job.

        A coordinator records a job's keys long before its results. A key that it records again at this moment is
        skipped, or inserted anew.
        """
        running = and_(jobs.c.status == Status.RUNNING, jobs.c.lease_until >= now())
        oldest = select(func.coalesce(func.min(jobs.c.submitted_at) - KEY_FRESH_SECONDS, now())).where(running)
        unused = select(keys.c.digest).where(
            keys.c.digest >= first,
            keys.c.digest < end,
            keys.c.recorded_at < now() - older_than_seconds,
            keys.c.recorded_at < oldest.scalar_subquery(),
            ~exists().where(results.c.template_key == keys.c.digest),
            ~exists().where(results.c.cubin_key == keys.c.digest),
        )
        locked = unused.with_for_update(skip_locked=True, of=keys)
        with self._database.writing() as connection:
            connection.execute(delete(keys).where(keys.c.digest.in_(locked)))


def _ended(older_than_seconds: float) -> ColumnElement[bool]:
    return and_(jobs.c.status.in_(FINAL), jobs.c.finished_at < now() - older_than_seconds)
