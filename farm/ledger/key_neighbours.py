"""Keys similar to another one, and the jobs that used them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, and_, func, select

from farm.jobs.model import Build, Outcome
from farm.ledger.database import Database
from farm.ledger.tables import builds, jobs, keys, results

NEWEST = 200
"""Number of uses of each kind that are compared, the newest first."""


@dataclass(frozen=True)
class KeyUse:
    """A cubin of a job with a given key."""

    job: str
    number: int
    """Number of the job; later jobs have larger numbers."""
    name: str
    """Name of the job."""
    layer: str
    arch: str
    outcome: Outcome
    at: datetime


@dataclass(frozen=True)
class Neighbour:
    """A key of an earlier job."""

    digest: str
    fields: Mapping[str, str]
    number: int
    """Number of the newest job that used it; later jobs have larger numbers."""
    layers: frozenset[str]
    """Names of the layers that used it."""


class Neighbours:
    """Queries for keys similar to another one. Raises LedgerError if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def fields(self, digest: str) -> dict[str, str]:
        """The fields of a key; empty if the ledger no longer has it."""
        with self._database.reading() as connection:
            return connection.execute(select(keys.c.fields).where(keys.c.digest == digest)).scalar() or {}

    def near(self, build: Build, template_key: str, arch: str) -> list[Neighbour]:
        """Cubin keys of earlier jobs that may be similar to the build's own.

        They are of layers with the same weights, the same template or the same name: the newest of each kind, so that
        the query is as fast in a large ledger as in a small one.
        """
        first = select(func.min(builds.c.id)).where(builds.c.job == build.job).scalar_subquery()
        of_build = (results.c.cubin_key, jobs.c.number, builds.c.layer)
        before = (
            select(*of_build)
            .join_from(results, builds, builds.c.id == results.c.build)
            .join(jobs, jobs.c.id == results.c.job)
            .where(results.c.build < first, results.c.outcome != Outcome.FAILED)
            .order_by(results.c.build.desc())
            .limit(NEWEST)
        )

        def newest(which: ColumnElement[bool]) -> ColumnElement[bool]:
            found = select(builds.c.id).where(which, builds.c.id < first).order_by(builds.c.id.desc()).limit(NEWEST)
            return results.c.build.in_(found)

        alike = (
            newest(builds.c.weights == build.weights),
            and_(results.c.template_key == template_key, results.c.arch == arch),
            newest(builds.c.layer == build.layer),
        )
        numbers: dict[str, int] = {}
        layers: dict[str, set[str]] = {}
        with self._database.reading() as connection:
            for each in alike:
                for row in connection.execute(before.where(each)):
                    numbers[row.cubin_key] = max(row.number, numbers.get(row.cubin_key, 0))
                    layers.setdefault(row.cubin_key, set()).add(row.layer)
            found = connection.execute(select(keys.c.digest, keys.c.fields).where(keys.c.digest.in_(numbers)))
            return [
                Neighbour(row.digest, row.fields, numbers[row.digest], frozenset(layers[row.digest])) for row in found
            ]

    def uses(self, digest: str) -> list[KeyUse]:
        """The uses of a cubin key, oldest first."""
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
            .where(results.c.cubin_key == digest)
            .order_by(results.c.recorded_at, jobs.c.number, builds.c.position)
        )
        with self._database.reading() as connection:
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
