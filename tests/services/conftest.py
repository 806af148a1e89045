"""The services that tests start; a test that asks for `database` runs on each kind of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farm.config.settings import Settings, load_settings
from farm.ledger import Ledger, open_ledger, upgrade_database
from tests.services.ceph import Ceph, lacks_ceph
from tests.services.postgresql import PostgreSQL, lacks_postgresql

MIGRATED = "migrated"


@dataclass(frozen=True)
class Database:
    kind: str
    settings: Settings

    def open(self) -> Ledger:
        return open_ledger(self.settings)

    def upgrade(self) -> None:
        upgrade_database(self.settings)


def settings_of(url: str) -> Settings:
    return load_settings({"FARM_DATABASE_URL": url})


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    if reason := lacks_postgresql():
        pytest.skip(reason)
    with PostgreSQL() as server:
        server.execute(f"create database {MIGRATED} template template0")
        upgrade_database(settings_of(server.url(MIGRATED)))
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Before its first migration."""
    if request.param == "sqlite":
        yield Database("sqlite", settings_of(f"sqlite:///{tmp_path / 'deep' / 'farm.db'}"))
        return
    server: PostgreSQL = request.getfixturevalue("postgresql")
    name = server.new_database()
    yield Database("postgresql", settings_of(server.url(name)))
    server.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with the settings that this program needs."""
    if request.param == "sqlite":
        yield Database("sqlite", settings_of(f"sqlite:///{tmp_path / 'deep' / 'farm.db'}"))
        return
    server: PostgreSQL = request.getfixturevalue("postgresql")
    name = server.new_database(MIGRATED)
    yield Database("postgresql", settings_of(server.url(name)))
    server.drop_database(name)


@pytest.fixture
def postgresql_database(postgresql: PostgreSQL) -> Iterator[Database]:
    name = postgresql.new_database(MIGRATED)
    yield Database("postgresql", settings_of(postgresql.url(name)))
    postgresql.drop_database(name)


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    ledger = database.open()
    yield ledger
    ledger.close()


@pytest.fixture(scope="session")
def ceph() -> Iterator[Ceph]:
    if reason := lacks_ceph():
        pytest.skip(reason)
    # Not pytest's own folder: the path of a socket may have 107 characters only.
    with tempfile.TemporaryDirectory(prefix="ceph-") as folder, Ceph(Path(folder)) as started:
        yield started
