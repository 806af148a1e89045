"""Statistics of the cache, counted in SQL, and the timeline of a submission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, exists, func, or_, select

from farm.jobs.model import Outcome
from farm.ledger.database import Database, patient
from farm.ledger.tables import jobs, marks, now, results, template_runs

MARK = "statistics"
"""Name of the mark from which `farm stats` counts."""


@dataclass(frozen=True)
class TemplateRun:
    """One run of nvcc that made a template."""

    id: str
    template_key: str
    job: str
    """The first of the jobs that waited for it."""
    seconds: float


@dataclass(frozen=True)
class TimedRun:
    """One run of nvcc, or one cubin that was built, found in the store, or failed."""

    job: str
    """For a run of nvcc, the first of the jobs that waited for it."""
    is_template: bool
    outcome: Outcome
    ended_at: datetime
    """When the ledger recorded it, by the database's clock."""
    seconds: float
    """Time of the tools; for a cache hit, the time that they took when it was built."""


@dataclass(frozen=True)
class StageStatistics:
    """Cache hits and misses of one stage. Failures count as neither."""

    hits: int
    misses: int
    spent_seconds: float
    """Time of nvcc for templates, of ptxas for cubins."""
    saved_seconds: float
    """Time that the hits would have taken without the cache."""

    @property
    def rate(self) -> float | None:
        """Hits over hits and misses; None before the first look-up."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None


@dataclass(frozen=True)
class Statistics:
    """Totals over all results in the ledger, or those since the mark."""

    since: datetime | None
    template: StageStatistics
    """A job whose cubins were all hits looked up no template."""
    skeleton: StageStatistics
    """A job looks up one for each template and architecture for which it assembles a cubin directly."""
    cubin: StageStatistics
    direct: int
    """Number of built cubins that were assembled directly, without ptxas."""
    failed: int
    """Number of cubins that could not be built."""
    fmas_kept: int
    fmas_deleted: int
    built_bytes: int
    """Size of the built cubins."""
    hit_bytes: int
    """Size of the cubins that were cache hits."""


class StatisticsTable:
    """Statistics of results. Raises LedgerError if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @patient
    def record_runs(self, runs: Sequence[TemplateRun]) -> None:
        """Records runs of nvcc; existing rows stay as they are."""
        if not runs:
            return
        with self._database.writing() as connection:
            at = connection.execute(select(now())).scalar_one()
            statement = self._database.insert_or_replace(template_runs, ("id",), ())
            connection.execute(statement, [{**asdict(run), "recorded_at": at} for run in runs])

    def read(self, *, all_time: bool = False) -> Statistics:
        """Statistics since the mark, or with `all_time` of everything in the ledger."""
        with self._database.reading() as connection:
            mark = connection.execute(select(marks.c.at).where(marks.c.name == MARK)).scalar()
            since = None if all_time else mark
            first = since or 0.0
            found = _statistics(connection, results.c.recorded_at >= first, template_runs.c.recorded_at >= first)
        return replace(found, since=None if since is None else datetime.fromtimestamp(since, UTC))

    def of_job(self, job_id: str) -> Statistics:
        """Statistics of one job's cubins, and of the templates that were made for it first."""
        with self._database.reading() as connection:
            return _statistics(connection, results.c.job == job_id, template_runs.c.job == job_id)

    def timeline(self, submission: str) -> list[TimedRun]:
        """The runs of nvcc and the cubins of a submission's jobs, in the order in which they ended."""
        ids = select(jobs.c.id).where(jobs.c.submission == submission)
        templates = select(template_runs).where(template_runs.c.job.in_(ids))
        columns = (results.c.job, results.c.outcome, results.c.recorded_at)
        seconds = (results.c.rewrite_seconds + results.c.ptxas_seconds).label("seconds")
        cubins = select(*columns, seconds).where(results.c.job.in_(ids))
        with self._database.reading() as connection:
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

    def zero(self) -> datetime:
        """Sets the mark to now and returns it; nothing is deleted."""
        with self._database.writing() as connection:
            at = float(connection.execute(select(now())).scalar_one())
            statement = self._database.insert_or_replace(marks, ("name",), ("at",))
            connection.execute(statement, [{"name": MARK, "at": at}])
        return datetime.fromtimestamp(at, UTC)


def _statistics(connection: Connection, counted: ColumnElement[bool], counted_runs: ColumnElement[bool]) -> Statistics:
    """Statistics of the results and runs of nvcc that fulfil the conditions."""
    hit, built = results.c.outcome == Outcome.HIT, results.c.outcome == Outcome.BUILT
    columns = {
        "hits": func.count(case((hit, 1))),
        "built": func.count(case((built, 1))),
        "failed": func.count(case((results.c.outcome == Outcome.FAILED, 1))),
        "spent_seconds": _sum_if(built, results.c.ptxas_seconds),
        "saved_seconds": _sum_if(hit, results.c.ptxas_seconds),
        "fmas_kept": _sum_if(or_(hit, built), results.c.fmas_kept),
        "fmas_deleted": _sum_if(or_(hit, built), results.c.fmas_deleted),
        "direct": func.count(case((and_(built, results.c.assembler == "direct"), 1))),
        "built_bytes": _sum_if(built, results.c.cubin_bytes),
        "hit_bytes": _sum_if(hit, results.c.cubin_bytes),
    }
    row = connection.execute(select(*(column.label(name) for name, column in columns.items())).where(counted)).one()
    return Statistics(
        since=None,
        template=_templates(connection, counted, counted_runs),
        skeleton=_skeletons(connection, counted),
        direct=row.direct,
        cubin=StageStatistics(row.hits, row.built, float(row.spent_seconds), float(row.saved_seconds)),
        failed=row.failed,
        fmas_kept=int(row.fmas_kept),
        fmas_deleted=int(row.fmas_deleted),
        built_bytes=int(row.built_bytes),
        hit_bytes=int(row.hit_bytes),
    )


def _sum_if(which: ColumnElement[bool], column: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(case((which, column), else_=0)), 0)


def _skeletons(connection: Connection, counted: ColumnElement[bool]) -> StageStatistics:
    """Statistics of skeletons. The usual time of one is known from the whole ledger, not only from the counted ones."""
    of_skeleton = results.c.template_key, results.c.arch
    seconds = results.c.skeleton_seconds
    usual = (
        select(*of_skeleton, func.max(seconds).label("seconds")).group_by(*of_skeleton).having(func.max(seconds) > 0)
    ).subquery()
    found = (
        select(
            *of_skeleton, func.sum(seconds).label("seconds"), func.sum(case((seconds > 0, 1), else_=0)).label("made")
        )
        .where(counted, results.c.outcome == Outcome.BUILT, results.c.assembler == "direct")
        .group_by(results.c.job, *of_skeleton)
        .subquery()
    )
    same = and_(usual.c.template_key == found.c.template_key, usual.c.arch == found.c.arch)
    hit = found.c.made == 0
    columns = (
        func.count(case((hit, 1))),
        func.coalesce(func.sum(found.c.made), 0),
        func.coalesce(func.sum(found.c.seconds), 0.0),
        _sum_if(hit, usual.c.seconds),
    )
    hits, made, spent, saved = connection.execute(select(*columns).select_from(found.outerjoin(usual, same))).one()
    return StageStatistics(int(hits), int(made), float(spent), float(saved))


def _templates(
    connection: Connection, counted: ColumnElement[bool], counted_runs: ColumnElement[bool]
) -> StageStatistics:
    """Statistics of templates.

    A job looked up a template if it built a cubin from it or waited for it; for one of these jobs nvcc made it.
    The usual time of a template is known from all its runs, not only from the counted ones.
    """
    runs = template_runs.c
    made, spent = connection.execute(
        select(func.count(), func.coalesce(func.sum(runs.seconds), 0.0)).where(counted_runs)
    ).one()
    key = results.c.template_key
    usual = select(runs.template_key, func.max(runs.seconds).label("seconds")).group_by(runs.template_key).subquery()
    ran = exists().where(runs.job == results.c.job, runs.template_key == key, counted_runs)
    looked = or_(results.c.outcome == Outcome.BUILT, results.c.template_seconds > 0)
    found = (
        select(key, func.max(case((looked, 1), else_=0)).label("looked"))
        .where(counted, results.c.outcome != Outcome.FAILED, ~ran)
        .group_by(results.c.job, key)
        .subquery()
    )
    columns = (func.coalesce(func.sum(column), 0) for column in (found.c.looked, usual.c.seconds))
    query = select(*columns).select_from(found.outerjoin(usual, usual.c.template_key == found.c.template_key))
    hits, saved = connection.execute(query).one()
    return StageStatistics(int(hits), int(made), float(spent), float(saved))
