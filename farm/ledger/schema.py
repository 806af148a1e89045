"""The database's revision and its upgrade. Alembic is imported only if the revision is not this program's."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from sqlalchemy import Engine, inspect, select, text
from sqlalchemy.exc import DBAPIError

from farm.config.settings import redacted
from farm.errors import LedgerError
from farm.ledger.database import Database, failure
from farm.ledger.tables import coordinators, now

LOCK = 0x6661726D
"""Number of the advisory lock on a server: nothing else in the same database may use it."""


@dataclass(frozen=True)
class Migrations:
    """The migrations of one version of this program."""

    head: str
    """The newest revision: the one that this program works with."""
    folder: str
    """Alembic's folder, with a file for each revision in `versions`."""

    def known(self) -> frozenset[str]:
        """All revisions, from each of which there is a way to the newest."""
        from alembic.script import ScriptDirectory

        return frozenset(each.revision for each in ScriptDirectory(self.folder).walk_revisions(head=self.head))


MIGRATIONS = Migrations("2", str(files("migrations")))


def revision(engine: Engine) -> str | None:
    """The database's revision; None if it is empty."""
    with Database(engine).reading() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("select version_num from alembic_version")).scalar()


def check_known(engine: Engine, found: str | None) -> None:
    """Raises LedgerError if this program can neither use nor upgrade a database of that revision."""
    if found not in (None, MIGRATIONS.head) and found not in MIGRATIONS.known():
        raise LedgerError(
            f"the database {redacted(engine.url.render_as_string(hide_password=True))} has revision {found}, "
            f"unknown to this program (revision {MIGRATIONS.head}): "
            "use the version of farm that made it, or name another database in FARM_DATABASE_URL"
        )


def upgrade(engine: Engine, *, while_running: bool = False) -> None:
    """Upgrades the database to this program's revision; if several processes try, one does it and the others wait.

    Raises LedgerError for a revision that this program does not know, if the database fails, and, unless
    `while_running`, while a coordinator is alive: it is of another version, which the migration may break.
    """
    with _lock(engine):
        found = revision(engine)
        check_known(engine, found)
        if found == MIGRATIONS.head:
            return
        if not while_running and (alive := _live_coordinators(engine)):
            raise LedgerError(
                f"the database cannot be migrated: {len(alive)} coordinators of another version use it "
                f"({', '.join(alive)}). Stop them, or run farm db upgrade --while-running."
            )
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.attributes["engine"] = engine
        # Alembic takes % in an option for the start of a placeholder.
        config.set_main_option("script_location", MIGRATIONS.folder.replace("%", "%%"))
        try:
            command.upgrade(config, MIGRATIONS.head)
        except DBAPIError as error:
            raise failure(engine, error) from None


def _live_coordinators(engine: Engine) -> list[str]:
    with Database(engine).reading() as connection:
        if not inspect(connection).has_table(coordinators.name):
            return []
        alive = select(coordinators.c.id).where(coordinators.c.lease_until >= now())
        return list(connection.execute(alive.order_by(coordinators.c.id)).scalars())


@contextmanager
def _lock(engine: Engine) -> Iterator[None]:
    """Excludes other processes: by a file beside an embedded database, by an advisory lock on a server."""
    if engine.dialect.name == "postgresql":
        # An advisory lock belongs to its connection, so it ends with the process at the latest.
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"select pg_advisory_lock({LOCK})"))
            try:
                yield
            finally:
                connection.execute(text(f"select pg_advisory_unlock({LOCK})"))
        return
    path = engine.url.database
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(f"{path}.lock").open("w"))
        except OSError as error:
            raise LedgerError(
                f"the database {path} has to be migrated, but {path}.lock cannot be made ({error.strerror}): "
                "check the folder's permissions, or name another database in FARM_DATABASE_URL"
            ) from None
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
