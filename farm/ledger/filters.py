"""Filters of job queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from sqlalchemy import ColumnElement, Text, and_, cast, true

from farm.jobs.model import Status
from farm.ledger.tables import jobs


class Which(TypedDict, total=False):
    """Conditions that a job must all fulfil; None is no condition."""

    states: Sequence[Status] | None
    name: str | None
    """A part of the job's name, in either case; `model` is a part of the path likewise."""
    model: str | None
    arch: str | None
    submission: str | None


def chosen(which: Which) -> ColumnElement[bool]:
    """The SQL condition of a filter."""
    conditions: list[ColumnElement[bool]] = [true()]
    if (states := which.get("states")) is not None:
        conditions.append(jobs.c.status.in_(states))
    if (name := which.get("name")) is not None:
        conditions.append(jobs.c.name.icontains(name, autoescape=True))
    if (model := which.get("model")) is not None:
        conditions.append(jobs.c.model.icontains(model, autoescape=True))
    if (arch := which.get("arch")) is not None:
        # Options are JSON text. The quotes distinguish sm_90 from sm_90a.
        conditions.append(cast(jobs.c.options, Text).contains(f'"{arch}"', autoescape=True))
    if (submission := which.get("submission")) is not None:
        conditions.append(jobs.c.submission == submission)
    return and_(*conditions)


CLAIMED = and_(jobs.c.status == Status.RUNNING, jobs.c.started_at.is_(None))
"""The condition of Job.claimed."""


def no_such_job(prefix: str) -> str:
    """The message for the beginning of a job's id, or `latest`, that no job has."""
    if prefix == "latest":
        return "there are no jobs yet: farm compile makes one"
    if prefix.endswith(".onnx"):
        return f"no such job: '{prefix}' looks like a model. Try farm plan {prefix}, or farm compile"
    if prefix.endswith(".farm"):
        return f"no such job: '{prefix}' looks like a bundle. Try farm bundle show {prefix}"
    return f"no such job: '{prefix}'. farm status lists jobs"
