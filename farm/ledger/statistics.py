"""Statistics of the cache, summed from the counters of jobs, and the timeline of a submission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from farm.jobs.model import Outcome
from farm.ledger.database import Database, patient
from farm.ledger.job_counters import COUNTERS, count_results, drop_counters
from farm.ledger.job_states import locked
from farm.ledger.tables import job_counters, jobs, marks, now, results, template_runs

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

    @property
    def spent_seconds(self) -> float:
        """CPU time of nvcc, ptxas and the assembler; each runs on one core."""
        return sum(stage.spent_seconds for stage in (self.template, self.skeleton, self.cubin))

    @property
    def saved_seconds(self) -> float:
        """CPU time that all hits would have taken without the cache."""
        return sum(stage.saved_seconds for stage in (self.template, self.skeleton, self.cubin))


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
            of_runs = {run.job for run in runs}
            locked(connection, jobs.c.id.in_(of_runs))  # so that none ends between the run and its counters
            drop_counters(connection, of_runs)
            at = connection.execute(select(now())).scalar_one()
            statement = self._database.insert_or_replace(template_runs, ("id",), ())
            connection.execute(statement, [{**asdict(run), "recorded_at": at} for run in runs])

    def read(self, *, all_time: bool = False) -> Statistics:
        """Statistics since the mark, or with `all_time` of everything in the ledger."""
        with self._database.reading() as connection:
            mark = connection.execute(select(marks.c.at).where(marks.c.name == MARK)).scalar()
            since = None if all_time else mark
            first = since or 0.0
            ran = template_runs.c.recorded_at >= first
            found = _statistics(connection, _not_kept(first), _kept(connection, first), ran)
        return replace(found, since=None if since is None else datetime.fromtimestamp(since, UTC))

    def of_job(self, job_id: str) -> Statistics:
        """Statistics of one job's cubins, and of the templates that were made for it first."""
        with self._database.reading() as connection:
            none = dict.fromkeys(COUNTERS, 0)
            return _statistics(connection, results.c.job == job_id, none, template_runs.c.job == job_id)

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


def _statistics(
    connection: Connection, which: ColumnElement[bool], kept: Mapping[str, Any], ran: ColumnElement[bool]
) -> Statistics:
    """Statistics of kept counters and of the results that fulfil `which`; `ran` selects the runs of nvcc."""
    counted = [kept, *count_results(connection, which)]
    sums = {name: sum(each[name] for each in counted) for name in COUNTERS}
    whole = {name: int(value) for name, value in sums.items() if not name.endswith("_seconds")}
    seconds = {name: float(value) for name, value in sums.items() if name.endswith("_seconds")}
    runs = select(func.count(), func.coalesce(func.sum(template_runs.c.seconds), 0.0)).where(ran)
    made, spent = connection.execute(runs).one()
    return Statistics(
        since=None,
        template=StageStatistics(whole["template_hits"], made, spent, seconds["template_saved_seconds"]),
        skeleton=StageStatistics(
            whole["skeleton_hits"],
            whole["skeleton_misses"],
            seconds["skeleton_spent_seconds"],
            seconds["skeleton_saved_seconds"],
        ),
        cubin=StageStatistics(whole["hits"], whole["built"], seconds["spent_seconds"], seconds["saved_seconds"]),
        direct=whole["direct"],
        failed=whole["failed"],
        fmas_kept=whole["fmas_kept"],
        fmas_deleted=whole["fmas_deleted"],
        built_bytes=whole["built_bytes"],
        hit_bytes=whole["hit_bytes"],
    )


def _kept(connection: Connection, since: float) -> Mapping[str, Any]:
    """Sums of the counters of jobs whose results were all recorded since then."""
    columns = (func.coalesce(func.sum(job_counters.c[name]), 0).label(name) for name in COUNTERS)
    return dict(connection.execute(select(*columns).where(job_counters.c.first_at >= since)).one()._mapping)


def _not_kept(since: float) -> ColumnElement[bool]:
    """The condition for results since then of the other jobs: those without counters, and those that began earlier."""
    began_earlier = and_(job_counters.c.first_at < since, job_counters.c.last_at >= since)
    others = select(jobs.c.id).outerjoin(job_counters, job_counters.c.job == jobs.c.id)
    others = others.where(or_(job_counters.c.job.is_(None), began_earlier))
    return and_(results.c.recorded_at >= since, results.c.job.in_(others))
