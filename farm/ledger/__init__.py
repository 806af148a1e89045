"""The ledger: jobs, builds and results in SQL."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine

from farm.config.settings import Settings, redacted
from farm.errors import LedgerError
from farm.ledger.coordinators import CoordinatorState
from farm.ledger.database import open_engine
from farm.ledger.filters import Which
from farm.ledger.jobs import Ledger
from farm.ledger.key_neighbours import KeyUse, Neighbour
from farm.ledger.retention import References
from farm.ledger.schema import HEAD, revision, upgrade
from farm.ledger.statistics import StageStatistics, Statistics, TemplateRun
from farm.ledger.timeline import TimedRun

__all__ = [
    "CoordinatorState",
    "KeyUse",
    "Ledger",
    "Neighbour",
    "References",
    "StageStatistics",
    "Statistics",
    "TemplateRun",
    "TimedRun",
    "Which",
    "database_revision",
    "open_ledger",
    "upgrade_database",
]


def open_ledger(settings: Settings) -> Ledger:
    """The configured ledger. An embedded database is made, and brought up to date, where that is needed.

    Raises LedgerError; of a server's database that is not up to date too: others may be at work in it.
    """
    engine = _open(settings)
    try:
        found = revision(engine)
        if found != HEAD and _file(settings) is None:
            raise LedgerError(
                f"the database {redacted(settings.database_url)} {_state(found)}, this program needs revision {HEAD}: "
                f"run farm db upgrade{', or use the version of farm that made it' if found else ''}"
            )
        if found != HEAD:
            upgrade(engine)
    except LedgerError:
        engine.dispose()
        raise
    return Ledger(engine)


def database_revision(settings: Settings) -> tuple[str | None, str]:
    """The database's revision and this program's."""
    file = _file(settings)
    if file is not None and not file.exists():
        return None, HEAD
    engine = open_engine(settings.database_url)
    try:
        return revision(engine), HEAD
    finally:
        engine.dispose()


def upgrade_database(settings: Settings) -> None:
    """What `farm db upgrade` does; opening an embedded ledger does the same."""
    engine = _open(settings)
    try:
        if revision(engine) != HEAD:
            upgrade(engine)
    finally:
        engine.dispose()


def _open(settings: Settings) -> Engine:
    """An embedded database has a folder then."""
    file = _file(settings)
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(
                f"the folder of the database {file} cannot be made ({error.strerror}): "
                "check its permissions, or name another database in FARM_DATABASE_URL"
            ) from None
    return open_engine(settings.database_url)


def _state(found: str | None) -> str:
    return "is empty" if found is None else f"has revision {found}"


def _file(settings: Settings) -> Path | None:
    """The file of an embedded database; None for a server's."""
    path = settings.database_url.removeprefix("sqlite:///")
    return None if path == settings.database_url else Path(path)
