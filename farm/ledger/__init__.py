"""The ledger: jobs, builds and results in SQL."""

from __future__ import annotations

from pathlib import Path

from farm.errors import LedgerError
from farm.ledger.engine import open_engine
from farm.ledger.ledger import Ledger
from farm.ledger.schema import HEAD, revision, upgrade
from farm.settings import Settings

__all__ = ["Ledger", "database_revision", "open_ledger", "upgrade_database"]


def open_ledger(settings: Settings) -> Ledger:
    """The configured ledger; an embedded database is made, and brought up to date, where that is needed."""
    path = _file(settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"the folder of the database {path} cannot be made: {error.strerror}") from None
    engine = open_engine(settings.database_url)
    try:
        if revision(engine) != HEAD:
            upgrade(engine)
    except LedgerError:
        engine.dispose()
        raise
    return Ledger(engine)


def database_revision(settings: Settings) -> tuple[str | None, str]:
    """The database's revision and this program's."""
    if not _file(settings).exists():
        return None, HEAD
    engine = open_engine(settings.database_url)
    try:
        return revision(engine), HEAD
    finally:
        engine.dispose()


def upgrade_database(settings: Settings) -> None:
    """What `farm db upgrade` does; opening an embedded ledger does the same."""
    open_ledger(settings).close()


def _file(settings: Settings) -> Path:
    return Path(settings.database_url.removeprefix("sqlite:///"))
