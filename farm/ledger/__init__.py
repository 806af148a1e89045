"""The ledger: jobs, builds and results in SQL."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine

from farm.config.settings import Settings, redacted
from farm.errors import LedgerError
from farm.ledger import schema
from farm.ledger.coordinators import CoordinatorState
from farm.ledger.database import Database, open_engine
from farm.ledger.filters import Which
from farm.ledger.jobs import Ledger
from farm.ledger.key_neighbours import KeyUse, Neighbour
from farm.ledger.retention import Reference, ReferenceKind
from farm.ledger.schema import check_known, revision, upgrade
from farm.ledger.statistics import StageStatistics, Statistics, TemplateRun, TimedRun

__all__ = [
    "CoordinatorState",
    "KeyUse",
    "Ledger",
    "Neighbour",
    "Reference",
    "ReferenceKind",
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
    """The configured ledger. An embedded database is made or upgraded if necessary.

    Raises LedgerError; also for a server's database of an older revision, which other processes may be using.
    """
    engine = _open(settings)
    head = schema.MIGRATIONS.head
    try:
        found = revision(engine)
        check_known(engine, found)
        if found != head and _file(settings) is None:
            state = "is empty" if found is None else f"has revision {found}"
            raise LedgerError(
                f"the database {redacted(settings.database_url)} {state}, this program needs revision {head}: "
                "run farm db upgrade"
            )
        if found != head:
            upgrade(engine)
    except LedgerError:
        engine.dispose()
        raise
    return Ledger(Database(engine))


def database_revision(settings: Settings) -> tuple[str | None, str]:
    """The database's revision (None: it is empty or not there yet) and this program's."""
    head = schema.MIGRATIONS.head
    file = _file(settings)
    if file is not None and not file.exists():
        return None, head
    engine = open_engine(settings.database_url)
    try:
        return revision(engine), head
    finally:
        engine.dispose()


def upgrade_database(settings: Settings, *, while_running: bool = False) -> None:
    """Upgrades the configured database to this program's revision; does nothing if it has it.

    Raises LedgerError while a coordinator is alive, unless `while_running`.
    """
    engine = _open(settings)
    try:
        if revision(engine) != schema.MIGRATIONS.head:
            upgrade(engine, while_running=while_running)
    finally:
        engine.dispose()


def _open(settings: Settings) -> Engine:
    """An engine for the configured database; the folder of an embedded one is made."""
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


def _file(settings: Settings) -> Path | None:
    """The file of an embedded database; None for a server's."""
    path = settings.database_url.removeprefix("sqlite:///")
    return None if path == settings.database_url else Path(path)
