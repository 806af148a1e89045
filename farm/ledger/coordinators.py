"""Who is alive, and which templates and cubins each coordinator builds now, so that no other builds them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import and_, delete, func, insert, or_, select, update

from farm.jobs.model import Status
from farm.ledger.database import Database, patient
from farm.ledger.tables import coordinators, flights, jobs, now

FORGET_SECONDS = 3600.0
"""How long after its last word a coordinator that died is still listed."""


@dataclass(frozen=True)
class CoordinatorState:
    """One coordinator as the ledger knows it."""

    id: str
    node: str
    """The machine's name."""
    serves: bool
    """Takes whatever is pending; False for one that lives within a `farm compile`."""
    since: datetime
    seen: datetime
    """Its last heartbeat."""
    seen_seconds: float
    """How long ago that was, by the database's clock."""
    alive: bool
    jobs: int
    """That it runs now."""
    workers: tuple[Mapping[str, Any], ...]
    """As its executor described them at the last heartbeat."""


class Coordinators:
    """The heartbeats of coordinators, and their flights: the keys that each is building.

    A flight lasts until it is landed, or until its coordinator's lease has ended.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @patient
    def register(self, coordinator: str, node: str, *, serves: bool, lease_seconds: float) -> None:
        """Makes a coordinator known, and forgets those that died long ago."""
        with self._database.writing() as connection:
            long_ago = coordinators.c.seen < now() - FORGET_SECONDS
            connection.execute(delete(coordinators).where(or_(long_ago, coordinators.c.id == coordinator)))
            living = select(coordinators.c.id)
            connection.execute(delete(flights).where(flights.c.coordinator.not_in(living)))
            at = connection.execute(select(now())).scalar_one()
            row = {"id": coordinator, "node": node, "serves": serves, "since": at, "seen": at, "workers": []}
            connection.execute(insert(coordinators), {**row, "lease_until": at + lease_seconds})

    @patient
    def beat(self, coordinator: str, lease_seconds: float, workers: Sequence[Mapping[str, Any]]) -> None:
        """Says that it is alive, and what its workers do."""
        said = {"seen": now(), "lease_until": now() + lease_seconds, "workers": list(workers)}
        with self._database.writing() as connection:
            connection.execute(update(coordinators).where(coordinators.c.id == coordinator).values(said))

    @patient
    def leave(self, coordinator: str) -> None:
        """Forgets a coordinator that ends in order, and its flights."""
        with self._database.writing() as connection:
            connection.execute(delete(flights).where(flights.c.coordinator == coordinator))
            connection.execute(delete(coordinators).where(coordinators.c.id == coordinator))

    def all(self) -> list[CoordinatorState]:
        """Those alive and those that died within the last hour, oldest first."""
        running = and_(jobs.c.coordinator == coordinators.c.id, jobs.c.status == Status.RUNNING)
        count = select(func.count()).select_from(jobs).where(running).scalar_subquery()
        query = select(coordinators, count.label("jobs"), now().label("now")).order_by(coordinators.c.since)
        with self._database.reading() as connection:
            return [_state_of_row(row) for row in connection.execute(query)]

    def any_serves(self) -> bool:
        """Whether a coordinator is alive that takes whatever is pending."""
        alive = select(coordinators.c.id).where(coordinators.c.serves, coordinators.c.lease_until >= now())
        with self._database.reading() as connection:
            return connection.execute(alive.limit(1)).first() is not None

    @patient
    def acquire_keys(self, coordinator: str, keys: Sequence[str]) -> set[str]:
        """Those of the keys that this coordinator may build now: no other that is alive builds them."""
        if not keys:
            return set()
        others = select(coordinators.c.id).where(coordinators.c.lease_until >= now(), coordinators.c.id != coordinator)
        free = flights.c.coordinator.not_in(others)
        statement = self._database.insert_or_replace(flights, ("key",), ("coordinator",), where=free)
        # Sorted: of two that ask for the same keys, one waits for the other, and neither for ever.
        rows = [{"key": key, "coordinator": coordinator} for key in sorted(keys)]
        mine = select(flights.c.key).where(flights.c.key.in_(keys), flights.c.coordinator == coordinator)
        with self._database.writing() as connection:
            connection.execute(statement, rows)
            return set(connection.execute(mine).scalars())

    @patient
    def release_keys(self, coordinator: str, keys: Sequence[str]) -> None:
        """The keys are built, or given up: others may have them."""
        if keys:
            done = and_(flights.c.key.in_(keys), flights.c.coordinator == coordinator)
            with self._database.writing() as connection:
                connection.execute(delete(flights).where(done))


def _state_of_row(row: Any) -> CoordinatorState:
    return CoordinatorState(
        id=row.id,
        node=row.node,
        serves=row.serves,
        since=datetime.fromtimestamp(row.since, UTC),
        seen=datetime.fromtimestamp(row.seen, UTC),
        seen_seconds=max(0.0, row.now - row.seen),
        alive=row.lease_until >= row.now,
        jobs=row.jobs,
        workers=tuple(row.workers),
    )
