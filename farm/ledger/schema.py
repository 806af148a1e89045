"""The database's revision, and the way up. Alembic is imported only where something has to be migrated."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path

from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from farm.errors import LedgerError
from farm.ledger.database import failure, reading

HEAD = "0014"
"""The newest revision in migrations/versions."""
LOCK = 0x6661726D
"""A number that nothing else in the same database locks."""


def revision(engine: Engine) -> str | None:
    """What the database has; None for an empty one."""
    with reading(engine) as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("select version_num from alembic_version")).scalar()


def upgrade(engine: Engine) -> None:
    """Brings the database to HEAD; of several processes that try at once, one does it and the others wait."""
    with _lock(engine):
        found = revision(engine)
        if found == HEAD:
            return
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        # Package data, so that an installed farm finds it too; the option takes % for a placeholder.
        config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
        config.attributes["engine"] = engine
        try:
            command.upgrade(config, HEAD)
        except CommandError as error:
            raise LedgerError(
                f"the database has revision {found}, which this program (revision {HEAD}) does not know ({error}): "
                "use the version of farm that made it, or a newer one"
            ) from None
        except DBAPIError as error:
            raise failure(engine, error) from None


@contextmanager
def _lock(engine: Engine) -> Iterator[None]:
    """A file beside an embedded database; a server has locks of its own."""
    if engine.dialect.name == "postgresql":
        # Of a connection, and so gone with its process.
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
                f"the database {path} has to be migrated, and {path}.lock cannot be made ({error.strerror}): "
                "check the folder's permissions, or name another database in FARM_DATABASE_URL"
            ) from None
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
