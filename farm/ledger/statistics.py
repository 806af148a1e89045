"""What the cache saved, counted in SQL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, and_, case, func, or_, select

from farm.jobs import Outcome
from farm.ledger.engine import insert_or_replace, reading, writing
from farm.ledger.tables import marks, now, results

MARK = "statistics"
"""From when is counted."""


@dataclass(frozen=True)
class StageStatistics:
    """Look-ups of one stage. What failed is neither a hit nor a miss."""

    hits: int
    misses: int
    spent_seconds: float
    """Of nvcc for templates, of ptxas for cubins."""
    saved_seconds: float
    """What they would have taken more without the cache."""

    @property
    def rate(self) -> float | None:
        """Hits over hits and misses; None before the first look-up."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None


@dataclass(frozen=True)
class Statistics:
    """Of all results that the ledger holds, or of those since a mark."""

    since: datetime | None
    template: StageStatistics
    """A job that found all its cubins looked for no template."""
    cubin: StageStatistics
    failed: int
    """Cubins that could not be made."""
    fmas_kept: int
    fmas_deleted: int
    built_bytes: int
    """Of the cubins that were built."""
    hit_bytes: int
    """Of those that were there."""


class StatisticsBook:
    """Raises LedgerError where the database cannot be used."""

    def __init__(self, engine: Engine, wait_seconds: float) -> None:
        self._engine = engine
        self._wait_seconds = wait_seconds

    def read(self, *, all_time: bool = False) -> Statistics:
        """Since the mark, or `all_time`: of everything that the ledger holds."""
        with reading(self._engine, self._wait_seconds) as connection:
            mark = connection.execute(select(marks.c.at).where(marks.c.name == MARK)).scalar()
            since = None if all_time else mark
            return _statistics(connection, since)

    def zero(self) -> datetime:
        """Counts anew from now; nothing is deleted."""
        with writing(self._engine, self._wait_seconds) as connection:
            at = float(connection.execute(select(now())).scalar_one())
            statement = insert_or_replace(self._engine, marks, ("name",), ("at",))
            connection.execute(statement, [{"name": MARK, "at": at}])
        return datetime.fromtimestamp(at, UTC)


def _statistics(connection: Connection, since: float | None) -> Statistics:
    counted = results.c.recorded_at >= (since or 0.0)
    hit, built = results.c.outcome == Outcome.HIT, results.c.outcome == Outcome.BUILT
    columns = {
        "hits": func.count(case((hit, 1))),
        "built": func.count(case((built, 1))),
        "failed": func.count(case((results.c.outcome == Outcome.FAILED, 1))),
        "spent_seconds": _sum_if(built, results.c.ptxas_seconds),
        "saved_seconds": _sum_if(hit, results.c.ptxas_seconds),
        "fmas_kept": _sum_if(or_(hit, built), results.c.fmas_kept),
        "fmas_deleted": _sum_if(or_(hit, built), results.c.fmas_deleted),
        "built_bytes": _sum_if(built, results.c.cubin_bytes),
        "hit_bytes": _sum_if(hit, results.c.cubin_bytes),
    }
    row = connection.execute(select(*(column.label(name) for name, column in columns.items())).where(counted)).one()
    return Statistics(
        since=None if since is None else datetime.fromtimestamp(since, UTC),
        template=_templates(connection, since or 0.0),
        cubin=StageStatistics(row.hits, row.built, float(row.spent_seconds), float(row.saved_seconds)),
        failed=row.failed,
        fmas_kept=int(row.fmas_kept),
        fmas_deleted=int(row.fmas_deleted),
        built_bytes=int(row.built_bytes),
        hit_bytes=int(row.hit_bytes),
    )


def _sum_if(which: ColumnElement[bool], column: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(case((which, column), else_=0)), 0)


def _templates(connection: Connection, since: float) -> StageStatistics:
    """A job looked for a template if it built a cubin with it; what several jobs shared, nvcc made once.

    Jobs that share a run of nvcc have its very time, to the last bit, and nobody else has. The results are read once:
    what a template usually takes is known from all of them, also from those before `since`.
    """
    seconds = results.c.template_seconds
    needed = and_(results.c.recorded_at >= since, or_(results.c.outcome != Outcome.FAILED, seconds > 0))
    looked = and_(needed, or_(results.c.outcome == Outcome.BUILT, seconds > 0))
    of_job = (
        select(
            results.c.template_key,
            func.max(case((needed, 1), else_=0)).label("needed"),
            func.max(case((looked, 1), else_=0)).label("looked"),
            func.max(case((and_(needed, seconds > 0), seconds))).label("run"),
            func.max(seconds).label("usual"),
        )
        .group_by(results.c.job, results.c.template_key)
        .subquery()
    )
    of_template = (
        select(
            func.sum(of_job.c.needed).label("needed"),
            func.sum(of_job.c.looked).label("looked"),
            func.count(of_job.c.run.distinct()).label("made"),
            func.sum(of_job.c.run.distinct()).label("spent"),
            func.max(of_job.c.usual).label("usual"),
        )
        .group_by(of_job.c.template_key)
        .subquery()
    )
    columns = (
        of_template.c.looked,
        of_template.c.made,
        of_template.c.spent,
        of_template.c.needed * of_template.c.usual,
    )
    query = select(*(func.coalesce(func.sum(column), 0) for column in columns))
    lookups, made, spent, without_cache = connection.execute(query).one()
    saved = max(0.0, float(without_cache) - float(spent))
    return StageStatistics(int(lookups) - int(made), int(made), float(spent), saved)
