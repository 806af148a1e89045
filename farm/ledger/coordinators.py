"""Live coordinators and their in-flight keys, so that each template and cubin is built by one coordinator only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, or_, select, update

from farm.jobs.model import JOB_FORMAT, Status
from farm.ledger.database import Database, patient
from farm.ledger.tables import coordinators, in_flight_keys, jobs, key_crashes, now

FORGET_SECONDS = 3600.0
"""Time after its last heartbeat for which a dead coordinator is still listed."""
REMOVE_SECONDS = 30 * 86400.0
"""Time after which its row is removed; long, because one that was suspended and wakes up needs its row."""
FORGET_CRASHES_SECONDS = 7 * 86400.0
"""Time after which the crash count of a key that is no longer built is removed."""


@dataclass(frozen=True)
class CoordinatorState:
    """A coordinator, as the ledger records it."""

    id: str
    node: str
    """The machine's name."""
    serves: bool
    """Whether it takes all pending jobs; False for the coordinator of a `farm compile`."""
    since: datetime
    seen: datetime
    """Time of its last heartbeat."""
    seen_seconds: float
    """Age of its last heartbeat, by the database's clock."""
    alive: bool
    jobs: int
    """Number of jobs that it runs now."""
    workers: tuple[Mapping[str, Any], ...]
    """Its executor's description of the workers, as of the last heartbeat."""


class Coordinators:
    """Heartbeats of coordinators, and their in-flight keys: the keys that each is building.

    A key is in flight until it is released or its coordinator's lease ends. Raises LedgerError if the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @patient
    def register(self, coordinator: str, node: str, *, serves: bool, lease_seconds: float) -> None:
        """Registers a coordinator, and removes those that died long ago."""
        with self._database.writing() as connection:
            long_ago = coordinators.c.seen < now() - REMOVE_SECONDS
            connection.execute(delete(coordinators).where(or_(long_ago, coordinators.c.id == coordinator)))
            living = select(coordinators.c.id)
            connection.execute(delete(in_flight_keys).where(in_flight_keys.c.coordinator.not_in(living)))
            at = connection.execute(select(now())).scalar_one()
            row = {"id": coordinator, "node": node, "serves": serves, "since": at, "seen": at, "workers": []}
            row |= {"format": JOB_FORMAT, "lease_until": at + lease_seconds}
            connection.execute(insert(coordinators), row)
            connection.execute(delete(key_crashes).where(key_crashes.c.crashed_at < at - FORGET_CRASHES_SECONDS))

    @patient
    def beat(self, coordinator: str, lease_seconds: float, workers: Sequence[Mapping[str, Any]]) -> None:
        """Records a heartbeat: extends the coordinator's lease and stores its workers' state."""
        values = {"seen": now(), "lease_until": now() + lease_seconds, "workers": list(workers)}
        with self._database.writing() as connection:
            connection.execute(update(coordinators).where(coordinators.c.id == coordinator).values(values))

    @patient
    def leave(self, coordinator: str) -> None:
        """Removes a coordinator that ends normally, and its in-flight keys."""
        with self._database.writing() as connection:
            connection.execute(delete(in_flight_keys).where(in_flight_keys.c.coordinator == coordinator))
            connection.execute(delete(coordinators).where(coordinators.c.id == coordinator))

    def all(self) -> list[CoordinatorState]:
        """Coordinators that are alive or died within the last hour, oldest first."""
        running = and_(jobs.c.coordinator == coordinators.c.id, jobs.c.status == Status.RUNNING)
        count = select(func.count()).select_from(jobs).where(running).scalar_subquery()
        query = select(coordinators, count.label("jobs"), now().label("now"))
        query = query.where(coordinators.c.seen >= now() - FORGET_SECONDS).order_by(coordinators.c.since)
        with self._database.reading() as connection:
            return [_state_of_row(row) for row in connection.execute(query)]

    def any_serves(self) -> bool:
        """Whether a coordinator is alive that takes all pending jobs and reads the format of this version."""
        serves = and_(coordinators.c.serves, coordinators.c.format >= JOB_FORMAT)
        alive = select(coordinators.c.id).where(serves, coordinators.c.lease_until >= now())
        with self._database.reading() as connection:
            return connection.execute(alive.limit(1)).first() is not None

    @patient
    def acquire_keys(self, coordinator: str, keys: Sequence[str], *, local: bool) -> dict[str, int]:
        """Acquires the keys that no other live coordinator is building; returns this one's, with their crashes so far.

        `local`: they are built on the coordinator's machine, so that its death counts as a crash of each.
        """
        if not keys:
            return {}
        others = select(coordinators.c.id).where(coordinators.c.lease_until >= now(), coordinators.c.id != coordinator)
        free = in_flight_keys.c.coordinator.not_in(others)
        statement = self._database.insert_or_replace(in_flight_keys, ("key",), ("coordinator", "local"), where=free)
        # Sorted, so that two coordinators that acquire the same keys do not deadlock.
        rows = [{"key": key, "coordinator": coordinator, "local": local} for key in sorted(keys)]
        of_dead = and_(in_flight_keys.c.local, free, in_flight_keys.c.coordinator != coordinator)
        held = and_(in_flight_keys.c.key.in_(keys), in_flight_keys.c.coordinator == coordinator)
        crashes = select(in_flight_keys.c.key, func.coalesce(key_crashes.c.crashes, 0).label("crashes")).where(held)
        with self._database.writing() as connection:
            dropped = select(in_flight_keys.c.key).where(in_flight_keys.c.key.in_(keys), of_dead)
            suspects = set(connection.execute(dropped).scalars())
            connection.execute(statement, rows)
            ours = set(connection.execute(select(in_flight_keys.c.key).where(held)).scalars())
            self._count_crashes(connection, suspects & ours)
            joined = crashes.outerjoin(key_crashes, key_crashes.c.key == in_flight_keys.c.key)
            return {row.key: row.crashes for row in connection.execute(joined)}

    @patient
    def count_crash(self, key: str) -> None:
        """Counts a worker that died while it built a key."""
        with self._database.writing() as connection:
            self._count_crashes(connection, {key})

    def _count_crashes(self, connection: Connection, keys: Collection[str]) -> None:
        if keys:
            rows = [{"key": key, "crashes": 0, "crashed_at": 0.0} for key in sorted(keys)]
            connection.execute(self._database.insert_or_replace(key_crashes, ("key",), ()), rows)
            counted = {"crashes": key_crashes.c.crashes + 1, "crashed_at": now()}
            connection.execute(update(key_crashes).where(key_crashes.c.key.in_(keys)).values(counted))

    @patient
    def release_keys(self, coordinator: str, keys: Sequence[str]) -> None:
        """Releases keys that are built or given up, so that others may acquire them; forgets their crashes."""
        if keys:
            held = and_(in_flight_keys.c.key.in_(keys), in_flight_keys.c.coordinator == coordinator)
            with self._database.writing() as connection:
                ours = select(in_flight_keys.c.key).where(held)
                connection.execute(delete(key_crashes).where(key_crashes.c.key.in_(ours)))
                connection.execute(delete(in_flight_keys).where(held))


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
