"""The connection to the database, and the few places where one kind differs from another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event
from sqlalchemy.exc import DBAPIError

from farm.errors import LedgerError

BUSY_SECONDS = 30
"""How long a writer waits for another."""


def open_engine(url: str) -> Engine:
    """An engine whose transactions say whether they write; nothing is connected yet."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def configure(connection: Any, _record: Any) -> None:
            connection.isolation_level = None  # the driver starts no transaction by itself: `begin` below does
            cursor = connection.cursor()
            for pragma in (f"busy_timeout = {BUSY_SECONDS * 1000}", "journal_mode = WAL", "synchronous = NORMAL"):
                cursor.execute(f"PRAGMA {pragma}")
            cursor.execute("PRAGMA foreign_keys = ON")
            cursor.close()

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            # A reader that turns writer late would fail where it should wait.
            writes = connection.get_execution_options().get("farm_writes", False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads. Raises LedgerError in words where the database fails."""
    with _transaction(engine, writes=False) as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes: whole, or not at all."""
    with _transaction(engine, writes=True) as connection:
        yield connection


@contextmanager
def _transaction(engine: Engine, *, writes: bool) -> Iterator[Connection]:
    try:
        with engine.connect().execution_options(farm_writes=writes) as connection, connection.begin():
            yield connection
    except DBAPIError as error:
        raise failure(engine, error) from None


def failure(engine: Engine, error: DBAPIError) -> LedgerError:
    """What the database said, in words and without its password."""
    return LedgerError(
        f"the database {engine.url.render_as_string(hide_password=True)} failed ({error.orig}): "
        "check that it can be reached, that it may be written and that its disk has room"
    )


def insert_or_replace(engine: Engine, table: Table, index: tuple[str, ...], replaced: tuple[str, ...]) -> Any:
    """An insert that replaces these columns of a row that is there already; without any, it leaves that row."""
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
        index_elements=index, set_={name: statement.excluded[name] for name in replaced}
    )
