"""The database's revision, and the way up. Alembic is imported only where something has to be migrated."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from sqlalchemy import Engine, inspect, text

from farm.errors import LedgerError
from farm.ledger.engine import reading

HEAD = "0001"
"""The newest revision in migrations/versions."""


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
        config.set_main_option("script_location", str(files("migrations")))
        config.attributes["engine"] = engine
        try:
            command.upgrade(config, HEAD)
        except CommandError as error:
            raise LedgerError(
                f"the database has revision {found}, which this program (revision {HEAD}) does not know ({error}): "
                "use the version of farm that made it, or a newer one"
            ) from None


def check(engine: Engine) -> None:
    """Raises LedgerError unless the database has this program's revision."""
    found = revision(engine)
    if found != HEAD:
        raise LedgerError(f"the database has revision {found}, this program needs {HEAD}: run farm db upgrade")


@contextmanager
def _lock(engine: Engine) -> Iterator[None]:
    """A file beside an embedded database; the database itself locks where it is a server."""
    path = engine.url.database if engine.dialect.name == "sqlite" else None
    if path is None:
        yield
        return
    with Path(f"{path}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
