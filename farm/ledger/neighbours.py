"""Keys that are like another one, and who used them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine, func, select

from farm.jobs import Outcome
from farm.ledger.engine import reading
from farm.ledger.tables import builds, jobs, keys, results


@dataclass(frozen=True)
class KeyUse:
    """One cubin of a job that had this key."""

    job: str
    number: int
    """Of the job: a later one is larger."""
    name: str
    """Of the job."""
    layer: str
    arch: str
    outcome: Outcome
    at: datetime


@dataclass(frozen=True)
class Neighbour:
    """A key that was used before."""

    digest: str
    fields: Mapping[str, str]
    number: int
    """Of the newest job that used it: a later one is larger."""


class Neighbours:
    """Raises LedgerError where the database cannot be used."""

    def __init__(self, engine: Engine, wait_seconds: float) -> None:
        self._engine = engine
        self._wait_seconds = wait_seconds

    def fields(self, digest: str) -> dict[str, str]:
        """What went into a key; nothing where the ledger has forgotten it."""
        with reading(self._engine, self._wait_seconds) as connection:
            return connection.execute(select(keys.c.fields).where(keys.c.digest == digest)).scalar() or {}

    def used_before(self, stage: str, job_id: str) -> Iterator[Neighbour]:
        """The keys of a stage ("template", "cubin") that jobs submitted before that one made or found."""
        column = {"template": results.c.template_key, "cubin": results.c.cubin_key}[stage]
        this = select(jobs.c.number).where(jobs.c.id == job_id).scalar_subquery()
        used = (
            select(column.label("digest"), func.max(jobs.c.number).label("number"))
            .join_from(results, jobs, results.c.job == jobs.c.id)
            .where(results.c.outcome != Outcome.FAILED, jobs.c.number < this)
            .group_by(column)
            .subquery()
        )
        query = select(keys.c.digest, keys.c.fields, used.c.number).join_from(
            used, keys, keys.c.digest == used.c.digest
        )
        with reading(self._engine, self._wait_seconds) as connection:
            for row in connection.execution_options(yield_per=1000).execute(query):
                yield Neighbour(row.digest, row.fields, row.number)

    def uses(self, stage: str, digest: str) -> list[KeyUse]:
        """Who had this key, the first one first."""
        column = {"template": results.c.template_key, "cubin": results.c.cubin_key}[stage]
        query = (
            select(
                results.c.job,
                jobs.c.number,
                jobs.c.name,
                builds.c.layer,
                results.c.arch,
                results.c.outcome,
                results.c.recorded_at,
            )
            .join_from(results, jobs, results.c.job == jobs.c.id)
            .join(builds, builds.c.id == results.c.build)
            .where(column == digest)
            .order_by(results.c.recorded_at, jobs.c.number, builds.c.position)
        )
        with reading(self._engine, self._wait_seconds) as connection:
            return [
                KeyUse(
                    row.job,
                    row.number,
                    row.name,
                    row.layer,
                    row.arch,
                    Outcome(row.outcome),
                    datetime.fromtimestamp(row.recorded_at, UTC),
                )
                for row in connection.execute(query)
            ]
