"""What the cache saved, counted in SQL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, case, func, or_, select

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
    columns = (
        func.count(),
        func.sum(results.c.ptxas_seconds),
        func.sum(results.c.fmas_kept),
        func.sum(results.c.fmas_deleted),
        func.sum(results.c.cubin_bytes),
    )
    query = select(results.c.outcome, *columns).where(counted).group_by(results.c.outcome)
    rows = {Outcome(row[0]): tuple(row)[1:] for row in connection.execute(query)}
    hit, built = rows.get(Outcome.HIT, (0,) * 5), rows.get(Outcome.BUILT, (0,) * 5)
    return Statistics(
        since=None if since is None else datetime.fromtimestamp(since, UTC),
        template=_templates(connection, since or 0.0),
        cubin=StageStatistics(int(hit[0]), int(built[0]), float(built[1]), float(hit[1])),
        failed=int(rows.get(Outcome.FAILED, (0,))[0]),
        fmas_kept=int(hit[2] + built[2]),
        fmas_deleted=int(hit[3] + built[3]),
        built_bytes=int(built[4]),
        hit_bytes=int(hit[4]),
    )


def _templates(connection: Connection, since: float) -> StageStatistics:
    """A job looked for a template if it built a cubin with it; what several jobs shared, nvcc made once.

    Jobs that share a run of nvcc have its very time, to the last bit, and nobody else has.
    """
    looked = or_(results.c.outcome == Outcome.BUILT, results.c.template_seconds > 0)
    needed = (
        select(
            results.c.job,
            results.c.template_key,
            func.max(results.c.template_seconds).label("seconds"),
            func.max(case((looked, 1), else_=0)).label("looked"),
        )
        .where(results.c.recorded_at >= since)
        .where(or_(results.c.outcome != Outcome.FAILED, results.c.template_seconds > 0))
        .group_by(results.c.job, results.c.template_key)
        .cte("needed")
    )
    runs = select(needed.c.template_key, needed.c.seconds).where(needed.c.seconds > 0).distinct().subquery()
    usual = (
        select(results.c.template_key, func.max(results.c.template_seconds).label("seconds"))
        .group_by(results.c.template_key)
        .subquery()
    )
    lookups = connection.execute(select(func.sum(needed.c.looked))).scalar_one() or 0
    made, spent = connection.execute(select(func.count(), func.coalesce(func.sum(runs.c.seconds), 0.0))).one()
    without_cache = connection.execute(
        select(func.sum(usual.c.seconds)).join_from(needed, usual, needed.c.template_key == usual.c.template_key)
    ).scalar_one()
    saved = max(0.0, float(without_cache or 0.0) - float(spent))
    return StageStatistics(int(lookups) - int(made), int(made), float(spent), saved)
