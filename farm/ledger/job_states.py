"""Moves of jobs between states: the rows to lock, and the values that they get."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, select

from farm.jobs.model import Status
from farm.ledger.tables import jobs, now

FINAL = tuple(status for status in Status if status.final)


def locked(connection: Connection, which: ColumnElement[bool]) -> ColumnElement[bool]:
    """Locks rows of jobs in one order, so that transactions do not deadlock, and returns a condition for them."""
    numbers = select(jobs.c.number).where(which).order_by(jobs.c.number).with_for_update(key_share=True)
    return jobs.c.number.in_(list(connection.execute(numbers).scalars()))


def held_by(coordinator: str) -> ColumnElement[bool]:
    """The condition for jobs that a coordinator holds."""
    return and_(jobs.c.coordinator == coordinator, jobs.c.status == Status.RUNNING)


def state_values(status: Status, reason: str) -> dict[str, Any]:
    """Values of a job's row that is no longer running."""
    values: dict[str, Any] = {
        "status": status,
        "reason": reason,
        "stage": "",
        "running": 0,
        "ends_at": None,
        "coordinator": None,
        "lease_until": None,
    }
    if status.final:
        values["finished_at"] = now()
    elif status is Status.PENDING:
        values |= {"started_at": None, "finished_at": None}
    return values
