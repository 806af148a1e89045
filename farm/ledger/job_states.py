"""How a job's row moves from state to state: which rows, locked how, and what they say then."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, select

from farm.jobs.model import Status
from farm.ledger.tables import jobs, now


def locked(connection: Connection, which: ColumnElement[bool]) -> ColumnElement[bool]:
    """The same rows of jobs, locked in one order by all who change several: else two could wait for one another."""
    numbers = select(jobs.c.number).where(which).order_by(jobs.c.number).with_for_update(key_share=True)
    return jobs.c.number.in_(list(connection.execute(numbers).scalars()))


def held_by(coordinator: str) -> ColumnElement[bool]:
    """The jobs that a coordinator has claimed and still has."""
    return and_(jobs.c.coordinator == coordinator, jobs.c.status == Status.RUNNING)


def state_values(status: Status, reason: str) -> dict[str, Any]:
    """What a job's row says once it is no longer running, or again pending."""
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
