"""Which jobs a query is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from sqlalchemy import ColumnElement, Text, and_, cast, true

from farm.jobs.model import Status
from farm.ledger.tables import jobs


class Which(TypedDict, total=False):
    """All that is named must hold, and None names nothing."""

    states: Sequence[Status] | None
    name: str | None
    """A part of the text, in either case; as `model`."""
    model: str | None
    arch: str | None
    submission: str | None


def chosen(which: Which) -> ColumnElement[bool]:
    """The condition for those jobs."""
    conditions: list[ColumnElement[bool]] = [true()]
    if (states := which.get("states")) is not None:
        conditions.append(jobs.c.status.in_(states))
    if (name := which.get("name")) is not None:
        conditions.append(jobs.c.name.icontains(name, autoescape=True))
    if (model := which.get("model")) is not None:
        conditions.append(jobs.c.model.icontains(model, autoescape=True))
    if (arch := which.get("arch")) is not None:
        # The options are JSON text; an architecture's quotes keep sm_90 apart from sm_90a.
        conditions.append(cast(jobs.c.options, Text).contains(f'"{arch}"', autoescape=True))
    if (submission := which.get("submission")) is not None:
        conditions.append(jobs.c.submission == submission)
    return and_(*conditions)


CLAIMED = and_(jobs.c.status == Status.RUNNING, jobs.c.started_at.is_(None))
"""As Job.claimed says it."""


def why_none(prefix: str) -> str:
    """What to tell who asks for a job, by the beginning of its id or as the `latest`, where there is none."""
    if prefix == "latest":
        return "there are no jobs yet: farm compile makes one"
    none = f"there is no job '{prefix}'"
    if prefix.endswith(".onnx"):
        plan = f"farm plan {prefix} says what is in it, and farm compile makes a job"
        return f"{none}, and a model is none: {plan}"
    if prefix.endswith(".farm"):
        return f"{none}, and a bundle is none: farm bundle show {prefix} says what is in it; farm status lists jobs"
    return f"{none}: farm status lists them"
