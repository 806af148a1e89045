"""The connection to the database, and the few places where one kind differs from another."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Table, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from farm.config.settings import redacted
from farm.errors import LedgerAwayError, LedgerError
from farm.extras import way_out

BUSY_SECONDS = 30
"""How long a writer waits for another."""
MOMENT_SECONDS = 0.01
"""Between two tries of what SQLite does not wait for by itself."""
CONNECT_SECONDS = 10
"""How long a server may take to answer."""
AGAIN_SECONDS = 0.5
"""Between two tries to reach a server that is away."""

_COMING_BACK = re.compile(r"the database system is|too many clients|connection slots")
"""What a server says that refuses a connection now and not for good."""


def open_engine(url: str) -> Engine:
    """An engine whose transactions say whether they write; nothing is connected yet.

    Raises LedgerError if the database's driver is not installed.
    """
    return _open_sqlite(url) if url.startswith("sqlite:") else _open_postgresql(url)


def _open_sqlite(url: str) -> Engine:
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver starts no transaction by itself: `begin` below does
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
        _write_ahead(cursor)
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A reader that turns writer late would fail where it should wait.
        writes = connection.get_execution_options().get("farm_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _write_ahead(cursor: sqlite3.Cursor) -> None:
    """A log of what is written, for good. SQLite does not wait by itself where others use a new file at that moment."""
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
        # A connection that the server has closed since is noticed before it is used, and replaced.
        return create_engine(url, pool_pre_ping=True, connect_args=connect)
    except ImportError as error:
        raise LedgerError(
            f"the database {redacted(url)} needs the driver psycopg, which cannot be imported ({error}): "
            f"{way_out('postgres')}"
        ) from None


@contextmanager
def reading(engine: Engine, wait_seconds: float = 0) -> Iterator[Connection]:
    """A transaction that reads. Raises LedgerError in words where the database fails."""
    with _transaction(engine, wait_seconds, writes=False) as connection:
        yield connection


@contextmanager
def writing(engine: Engine, wait_seconds: float = 0) -> Iterator[Connection]:
    """A transaction that writes: whole, or not at all."""
    with _transaction(engine, wait_seconds, writes=True) as connection:
        yield connection


@contextmanager
def _transaction(engine: Engine, wait_seconds: float, *, writes: bool) -> Iterator[Connection]:
    try:
        with _connect(engine, wait_seconds).execution_options(farm_writes=writes) as connection, connection.begin():
            yield connection
    except (DBAPIError, PoolTimeoutError) as error:
        raise failure(engine, error) from None


class _Waits(Protocol):
    _wait_seconds: float


_Self = TypeVar("_Self", bound=_Waits)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def patient(
    method: Callable[Concatenate[_Self, _Given], _Result],
) -> Callable[Concatenate[_Self, _Given], _Result]:
    """For a method that may be called twice with the same outcome: does so while the server is away, and for so long.

    A connection may break at any moment of a transaction, also after the server has committed it.
    """

    @wraps(method)
    def call(self: _Self, /, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        end = time.monotonic() + self._wait_seconds
        while True:
            try:
                return method(self, *given, **named)
            except LedgerAwayError:
                if time.monotonic() >= end:
                    raise
            time.sleep(AGAIN_SECONDS * random.uniform(0.5, 1.5))

    return call


def _connect(engine: Engine, wait_seconds: float) -> Connection:
    """Waits that long for a server that is away: nothing has begun yet that could be done twice."""
    end = time.monotonic() + wait_seconds
    while True:
        try:
            return engine.connect()
        except OperationalError as error:
            if not _away(error) or time.monotonic() >= end:
                raise
        time.sleep(AGAIN_SECONDS)


def _away(error: Exception) -> bool:
    """Whether the server does not answer, or answered that it is starting or stopping."""
    if not isinstance(error, OperationalError) or "psycopg" not in type(error.orig).__module__:
        return isinstance(error, PoolTimeoutError)
    said = str(error.orig)
    refused_for_good = "FATAL" in said and not _COMING_BACK.search(said)
    return error.connection_invalidated or not (refused_for_good or getattr(error.orig, "sqlstate", None))


_DAMAGED = ("file is not a database", "database disk image is malformed")
"""What SQLite says of them."""


def failure(engine: Engine, error: DBAPIError | PoolTimeoutError) -> LedgerError:
    """What the database said, in words and without its password."""
    name = redacted(engine.url.render_as_string(hide_password=True))
    said = " ".join(redacted(str(error.orig if isinstance(error, DBAPIError) else error)).split())
    if _away(error):
        return LedgerAwayError(
            f"the database {name} does not answer now ({said}): nothing is lost; try again once it is back"
        )
    way_out = "check that it can be reached, that it may be written and that its disk has room"
    if said in _DAMAGED:
        way_out = "move the file away, and the farm begins a new ledger; what is built stays in the store"
    return LedgerError(f"the database {name} failed ({said}): {way_out}")


def insert_or_replace(
    engine: Engine,
    table: Table,
    index: tuple[str, ...],
    replaced: tuple[str, ...],
    *,
    where: ColumnElement[bool] | None = None,
) -> Any:
    """An insert that replaces these columns of a row that is there already, if it is one of those `where`.

    Without any columns it leaves that row.
    """
    # Each dialect has an insert of its own, and takes time to import.
    if engine.dialect.name == "postgresql":
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


def one_at_a_time(connection: Connection, table: Table) -> None:
    """Keeps other transactions that ask for the same waiting until this one ends; readers go on.

    On SQLite, a transaction that writes is alone anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE"))
