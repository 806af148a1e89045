"""Counters of each job's results, so that statistics need not read all results of the ledger.

A job has its counters from its end until a result or a run of nvcc is recorded for it again. Results of jobs without
counters are counted when statistics are asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, delete, exists, func, literal_column, or_, select

from farm.jobs.model import Outcome
from farm.ledger.database import Database
from farm.ledger.tables import job_counters, results, template_runs

JOBS_AT_ONCE = 500
"""Jobs counted in one query, since a query has a limited number of parameters."""
COUNTERS = tuple(column.name for column in job_counters.columns if column.name not in ("job", "first_at", "last_at"))
_COLUMNS = tuple(column.name for column in job_counters.columns if column.name != "job")


def keep_counters(connection: Connection, database: Database, job_ids: Collection[str]) -> None:
    """Writes the counters of jobs that have just ended; the caller's transaction has locked their rows."""
    ids = sorted(job_ids)
    for first in range(0, len(ids), JOBS_AT_ONCE):
        counted = count_results(connection, results.c.job.in_(ids[first : first + JOBS_AT_ONCE]))
        if counted:
            connection.execute(database.insert_or_replace(job_counters, ("job",), _COLUMNS), counted)


def drop_counters(connection: Connection, job_ids: Collection[str]) -> None:
    """Deletes the counters of jobs whose results change."""
    connection.execute(delete(job_counters).where(job_counters.c.job.in_(job_ids)))


def count_results(connection: Connection, which: ColumnElement[bool]) -> list[dict[str, Any]]:
    """The counters of each job with results that fulfil the condition."""
    counted = {row.job: dict.fromkeys(_COLUMNS, 0) | dict(row._mapping) for row in connection.execute(_cubins(which))}
    for query in (_templates(which), _skeletons(which)):
        for row in connection.execute(query):
            counted[row.job] |= dict(row._mapping)
    return list(counted.values())


def _cubins(which: ColumnElement[bool]) -> Any:
    of = results.c
    hit, built = of.outcome == Outcome.HIT, of.outcome == Outcome.BUILT
    columns = {
        "first_at": func.min(of.recorded_at),
        "last_at": func.max(of.recorded_at),
        "hits": func.count(case((hit, 1))),
        "built": func.count(case((built, 1))),
        "failed": func.count(case((of.outcome == Outcome.FAILED, 1))),
        "direct": func.count(case((and_(built, of.assembler == "direct"), 1))),
        "spent_seconds": _sum_if(built, of.ptxas_seconds),
        "saved_seconds": _sum_if(hit, of.ptxas_seconds),
        "fmas_kept": _sum_if(or_(hit, built), of.fmas_kept),
        "fmas_deleted": _sum_if(or_(hit, built), of.fmas_deleted),
        "built_bytes": _sum_if(built, of.cubin_bytes),
        "hit_bytes": _sum_if(hit, of.cubin_bytes),
    }
    labelled = (column.label(name) for name, column in columns.items())
    return select(of.job, *labelled).where(which).group_by(of.job)


def _templates(which: ColumnElement[bool]) -> Any:
    """Cache hits of templates, and the time that nvcc usually takes for these.

    A job looked up a template if it built a cubin from it or waited for it; for one of these jobs nvcc made it.
    """
    of, runs = results.c, template_runs.c
    ran = exists().where(runs.job == of.job, runs.template_key == of.template_key)
    looked = or_(of.outcome == Outcome.BUILT, of.template_seconds > 0)
    found = (
        select(of.job, of.template_key, func.max(case((looked, 1), else_=0)).label("looked"))
        .where(which, of.outcome != Outcome.FAILED, ~ran)
        .group_by(of.job, of.template_key)
        .subquery()
    )
    usual = select(func.max(runs.seconds)).where(runs.template_key == found.c.template_key).scalar_subquery()
    timed = select(found.c.job, found.c.looked, func.coalesce(usual, 0.0).label("seconds")).subquery()
    hits, saved = func.sum(timed.c.looked), func.sum(timed.c.seconds)
    columns = hits.label("template_hits"), saved.label("template_saved_seconds")
    return select(timed.c.job, *columns).group_by(timed.c.job)


def _skeletons(which: ColumnElement[bool]) -> Any:
    """Cache hits and misses of skeletons, by template and architecture."""
    of, other = results.c, results.alias().c
    made = of.skeleton_seconds > 0
    found = (
        select(
            of.job,
            of.template_key,
            of.arch,
            func.sum(of.skeleton_seconds).label("seconds"),
            func.count(case((made, 1))).label("made"),
        )
        .where(which, of.outcome == Outcome.BUILT, of.assembler == "direct")
        .group_by(of.job, of.template_key, of.arch)
        .subquery()
    )
    # A literal, because a database uses a partial index only where it can see the index's condition in the query.
    known = and_(other.template_key == found.c.template_key, other.arch == found.c.arch)
    usual = select(func.max(other.skeleton_seconds)).where(known, other.skeleton_seconds > literal_column("0"))
    hit = found.c.made == 0
    usual_seconds = func.coalesce(usual.scalar_subquery(), 0.0)
    timed = select(found, case((hit, usual_seconds), else_=0.0).label("usual")).subquery()
    columns = {
        "skeleton_hits": func.count(case((timed.c.made == 0, 1))),
        "skeleton_misses": func.sum(timed.c.made),
        "skeleton_spent_seconds": func.sum(timed.c.seconds),
        "skeleton_saved_seconds": func.sum(timed.c.usual),
    }
    return select(timed.c.job, *(column.label(name) for name, column in columns.items())).group_by(timed.c.job)


def _sum_if(which: ColumnElement[bool], column: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(case((which, column), else_=0)), 0)
