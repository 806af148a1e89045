"""The connection to the database, and the differences between SQLite and PostgreSQL."""

from __future__ import annotations

import random
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Table, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from farm.config.settings import redacted
from farm.errors import LedgerAwayError, LedgerError
from farm.extras import way_out
from farm.ledger.interruptions import held_back

BUSY_SECONDS = 30
"""Time for which a writer waits for another one."""
MOMENT_SECONDS = 0.01
"""Pause between two tries of a statement for which SQLite does not wait by itself."""
CONNECT_SECONDS = 10
"""Time limit for connecting to a server."""
AGAIN_SECONDS = 0.5
"""Pause between two tries to reach a server that is unreachable."""

_COMING_BACK = re.compile(r"the database system is|too many clients|connection slots")
"""Messages of a server that refuses a connection only for the moment."""


def open_engine(url: str) -> Engine:
    """An engine whose transactions declare whether they write. It is not connected yet.

    Raises LedgerError if the database's driver is not installed.
    """
    return _open_sqlite(url) if url.startswith("sqlite:") else _open_postgresql(url)


def _open_sqlite(url: str) -> Engine:
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are started by `begin` below, not by the driver
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
        _write_ahead(cursor)
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that begins to write late would fail instead of waiting.
        writes = connection.get_execution_options().get("farm_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _write_ahead(cursor: sqlite3.Cursor) -> None:
    """Switches the database to write-ahead logging. SQLite itself does not wait if others use a new file meanwhile."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(MOMENT_SECONDS)
        else:
            return


def _open_postgresql(url: str) -> Engine:
    connect = {} if "connect_timeout" in make_url(url).query else {"connect_timeout": CONNECT_SECONDS}
    try:
        # Pre-ping detects and replaces a connection that the server has closed.
        return create_engine(url, pool_pre_ping=True, connect_args=connect)
    except ImportError as error:
        raise LedgerError(
            f"the database {redacted(url)} needs the driver psycopg, which cannot be imported ({error}): "
            f"{way_out('postgres')}"
        ) from None


class Database:
    """An engine, and how long each call waits for a server that is unreachable."""

    def __init__(self, engine: Engine, wait_seconds: float = 0) -> None:
        self.engine = engine
        self.wait_seconds = wait_seconds

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads. Raises LedgerError if the database fails."""
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes everything or nothing, and that one SIGINT or SIGTERM does not interrupt.

        Raises LedgerError if the database fails.
        """
        with self._transaction(writes=True) as connection:
            yield connection

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Connection]:
        handled = sys.exception()
        try:
            # Waiting for an unreachable server stays interruptible.
            connection = _connect(self.engine, self.wait_seconds).execution_options(farm_writes=writes)
            with held_back() if writes else nullcontext(), connection, connection.begin():
                yield connection
        except (DBAPIError, PoolTimeoutError) as error:
            raise _interruption(error, handled) or failure(self.engine, error) from None
        except AssertionError as error:  # SQLAlchemy's, after an interruption within a commit
            raise _interruption(error, handled) or error from None

    def insert_or_replace(
        self,
        table: Table,
        index: tuple[str, ...],
        replaced: tuple[str, ...],
        *,
        where: ColumnElement[bool] | None = None,
    ) -> Any:
        """An insert that replaces the columns `replaced` of a row with the same `index`, if that row fulfils `where`.

        Without columns to replace the existing row stays as it is.
        """
        # Each dialect has an insert of its own, whose import is slow.
        if self.engine.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql

            statement: Any = postgresql.insert(table)
        else:
            from sqlalchemy.dialects import sqlite

            statement = sqlite.insert(table)
        if not replaced:
            return statement.on_conflict_do_nothing(index_elements=index)
        return statement.on_conflict_do_update(
            index_elements=index, set_={name: statement.excluded[name] for name in replaced}, where=where
        )


class _UsesDatabase(Protocol):
    _database: Database


_Self = TypeVar("_Self", bound=_UsesDatabase)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def patient(
    method: Callable[Concatenate[_Self, _Given], _Result],
) -> Callable[Concatenate[_Self, _Given], _Result]:
    """Retries an idempotent method while the server is unreachable, for up to the database's wait_seconds.

    Idempotent because a connection may break at any moment of a transaction, even after the server has committed it.
    """

    @wraps(method)
    def call(self: _Self, /, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        end = time.monotonic() + self._database.wait_seconds
        while True:
            try:
                return method(self, *given, **named)
            except LedgerAwayError:
                if time.monotonic() >= end:
                    raise
            time.sleep(AGAIN_SECONDS * random.uniform(0.5, 1.5))

    return call


def _connect(engine: Engine, wait_seconds: float) -> Connection:
    """Connects, waiting up to that long for an unreachable server: no statement has run yet, so retrying is safe."""
    end = time.monotonic() + wait_seconds
    while True:
        try:
            return engine.connect()
        except OperationalError as error:
            if not _away(error) or time.monotonic() >= end:
                raise
        time.sleep(AGAIN_SECONDS)


def _away(error: Exception) -> bool:
    """Whether the server does not answer, or is starting or stopping."""
    if not isinstance(error, OperationalError) or "psycopg" not in type(error.orig).__module__:
        return isinstance(error, PoolTimeoutError)
    said = str(error.orig)
    refused_for_good = "FATAL" in said and not _COMING_BACK.search(said)
    return error.connection_invalidated or not (refused_for_good or getattr(error.orig, "sqlstate", None))


def _interruption(error: BaseException, handled: BaseException | None) -> KeyboardInterrupt | None:
    """The interruption that a driver hides by failing to clean up after it, as psycopg does within a query.

    Not one that was already being handled before.
    """
    before = error.__context__
    while before is not handled and before is not None:
        if isinstance(before, KeyboardInterrupt):
            return before
        before = before.__context__
    return None


_DAMAGED = ("file is not a database", "database disk image is malformed")
"""SQLite's messages for a damaged file."""


def failure(engine: Engine, error: DBAPIError | PoolTimeoutError) -> LedgerError:
    """The error for a failure of the database: its message without the password, and the way out."""
    name = redacted(engine.url.render_as_string(hide_password=True))
    said = " ".join(redacted(str(error.orig if isinstance(error, DBAPIError) else error)).split())
    if _away(error):
        return LedgerAwayError(f"the database {name} does not answer ({said}): nothing is lost, try again later")
    way_out = "check that it is reachable and writable and that its disk has space"
    if said in _DAMAGED:
        way_out = "move the file away to begin a new ledger; the store keeps what is built"
    return LedgerError(f"the database {name} failed ({said}): {way_out}")


def one_at_a_time(connection: Connection, table: Table) -> None:
    """Makes other transactions that call this for the same table wait until this one ends; readers do not wait.

    SQLite has only one writing transaction at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE"))
