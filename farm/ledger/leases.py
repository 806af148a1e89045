"""Leases by name: at most one process at a time does a kind of work, by the database's clock.

Leases of coordinators, by which they hold jobs, are in `coordinators.py`.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, delete, select, update

from farm.ledger.database import Database, patient
from farm.ledger.tables import leases, now


class Leases:
    """Named leases. Each holder's name is a fencing token, used once. Raises LedgerError if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @patient
    def acquire(self, name: str, holder: str, seconds: float) -> str:
        """Acquires a lease if it is free or expired. Returns the holder, which may be somebody else."""
        free = (leases.c.expires_at < now()) | (leases.c.holder == holder)
        statement = self._database.insert_or_replace(leases, ("name",), ("holder", "expires_at"), where=free)
        with self._database.writing() as connection:
            expires_at = connection.execute(select(now())).scalar_one() + seconds
            connection.execute(statement, [{"name": name, "holder": holder, "expires_at": expires_at}])
            found: str = connection.execute(select(leases.c.holder).where(leases.c.name == name)).scalar_one()
            return found

    @patient
    def renew(self, name: str, holder: str, seconds: float) -> bool:
        """Extends a lease, even an expired one. Returns False if the holder has lost it."""
        with self._database.writing() as connection:
            extended = update(leases).where(_held(name, holder)).values(expires_at=now() + seconds)
            return bool(connection.execute(extended).rowcount)

    @patient
    def release(self, name: str, holder: str) -> None:
        """Ends a lease; does nothing if another holder has it."""
        with self._database.writing() as connection:
            connection.execute(delete(leases).where(_held(name, holder)))


def _held(name: str, holder: str) -> ColumnElement[bool]:
    return and_(leases.c.name == name, leases.c.holder == holder)
