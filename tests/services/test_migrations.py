"""The migrations make the tables that the code uses, once, and refuse what they do not know."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

import farm
from farm.config.settings import Settings, load_settings
from farm.errors import LedgerError
from farm.ledger import database_revision, open_ledger, schema, upgrade_database
from farm.ledger.database import open_engine
from farm.ledger.schema import MIGRATIONS, Migrations
from farm.ledger.tables import metadata
from tests.services.conftest import Database
from tests.services.ledger_rows import new_job, submit
from tests.services.meeting import BARRIER, will_meet

CHECKOUT = Path(farm.__file__).parents[1]
LATER = Path(__file__).with_name("later_migration.py")
HEAD = MIGRATIONS.head


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Migrations:
    """The migrations of a later version: this version's and one more."""
    folder = tmp_path_factory.mktemp("later") / "migrations"
    shutil.copytree(MIGRATIONS.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(LATER, folder / "versions")
    return Migrations("3", str(folder))


@pytest.fixture
def later_version(later: Migrations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", later)


@pytest.fixture
def used_database(empty_database: Database) -> Database:
    """Made by this version, with a job in it."""
    empty_database.upgrade()
    ledger = empty_database.open()
    submit(ledger, new_job())
    ledger.close()
    return empty_database


def execute(database: Database, statement: str) -> Any:
    engine = open_engine(database.settings.database_url)
    with engine.execution_options(farm_writes=True).begin() as connection:
        result = connection.execute(text(statement))
        found = result.scalars().all() if result.returns_rows else None
    engine.dispose()
    return found


def tables_in(database: Database) -> set[str]:
    engine = open_engine(database.settings.database_url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def settings_in(folder: Path) -> Settings:
    return load_settings({"FARM_DATABASE_URL": f"sqlite:///{folder / 'farm.db'}"})


def upgrade_and_count(database: Database) -> int:
    BARRIER[0].wait(60)
    database.upgrade()
    ledger = database.open()
    try:
        return sum(ledger.counts().values())
    finally:
        ledger.close()


def test_the_newest_migration_is_the_revision_that_the_program_works_with() -> None:
    assert ScriptDirectory(MIGRATIONS.folder).get_current_head() == HEAD


def test_the_migrated_database_has_exactly_the_tables_of_the_code(empty_database: Database) -> None:
    empty_database.upgrade()
    engine = open_engine(empty_database.settings.database_url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    found = inspect(engine)
    for name, table in metadata.tables.items():
        keys = {(key.parent.name, key.target_fullname) for key in table.foreign_keys}
        assert keys == {
            (column, f"{key['referred_table']}.{target}")
            for key in found.get_foreign_keys(name)
            for column, target in zip(key["constrained_columns"], key["referred_columns"], strict=True)
        }
        assert {index.name for index in table.indexes} == {
            index["name"] for index in found.get_indexes(name) if not index.get("duplicates_constraint")
        }
        assert [column.name for column in table.primary_key] == found.get_pk_constraint(name)["constrained_columns"]
    engine.dispose()


def test_a_database_is_migrated_once(empty_database: Database) -> None:
    assert database_revision(empty_database.settings) == (None, HEAD)
    empty_database.upgrade()
    assert database_revision(empty_database.settings) == (HEAD, HEAD)
    empty_database.upgrade()
    empty_database.open().close()


def test_four_processes_may_migrate_an_empty_database_at_once(empty_database: Database) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(4, initializer=will_meet, initargs=(context.Barrier(4),)) as pool:
        assert pool.map(upgrade_and_count, [empty_database] * 4, chunksize=1) == [0] * 4


def test_a_later_version_upgrades_a_database_and_keeps_its_rows(used_database: Database, later_version: None) -> None:
    assert database_revision(used_database.settings) == (HEAD, "3")
    used_database.upgrade()
    assert database_revision(used_database.settings) == ("3", "3")
    assert "shelves" in tables_in(used_database)
    assert execute(used_database, "select priority from jobs") == [7]


def test_opening_upgrades_an_embedded_database_and_refuses_an_older_server(
    used_database: Database, later_version: None
) -> None:
    if used_database.kind == "sqlite":
        used_database.open().close()
        assert database_revision(used_database.settings) == ("3", "3")
        return
    with pytest.raises(LedgerError, match=rf"has revision {HEAD}, .* needs revision 3: run farm db upgrade"):
        used_database.open()
    assert database_revision(used_database.settings) == (HEAD, "3")


def test_a_database_is_not_migrated_under_a_live_coordinator(used_database: Database, later_version: None) -> None:
    register = "insert into coordinators values ('{0}', 'node', true, 0, 1, 0, {1}, '[]')"
    execute(used_database, register.format("dead-1", 1))
    execute(used_database, register.format("live-1", time.time() + 60))
    attempts = [used_database.upgrade] + [used_database.open] * (used_database.kind == "sqlite")
    for attempt in attempts:
        with pytest.raises(LedgerError, match=r"1 coordinators .* \(live-1\). Stop them, or run .* --while-running"):
            attempt()
    assert database_revision(used_database.settings) == (HEAD, "3")
    upgrade_database(used_database.settings, while_running=True)
    assert database_revision(used_database.settings) == ("3", "3")


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(used_database: Database, later_version: None) -> None:
    execute(used_database, "create table shelves (mine text)")  # made last by the later migration
    before = tables_in(used_database)
    with pytest.raises(LedgerError, match=r'shelves"? already exists'):
        used_database.upgrade()
    assert database_revision(used_database.settings) == (HEAD, "3")
    assert tables_in(used_database) == before
    engine = open_engine(used_database.settings.database_url)
    assert "priority" not in {column["name"] for column in inspect(engine).get_columns("jobs")}
    engine.dispose()


def test_a_first_migration_that_fails_leaves_the_database_as_it_was(empty_database: Database) -> None:
    if empty_database.kind == "sqlite":
        Path(empty_database.settings.database_url.removeprefix("sqlite:///")).parent.mkdir()
    execute(empty_database, "create table marks (mine text)")  # made last by the first migration
    with pytest.raises(LedgerError, match=r'marks"? already exists'):
        empty_database.upgrade()
    assert tables_in(empty_database) == {"marks"}


def test_the_database_of_a_later_version_is_refused(used_database: Database, later: Migrations) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", later)
        used_database.upgrade()
    for attempt in (used_database.open, used_database.upgrade):
        with pytest.raises(LedgerError, match=r"has revision 3, unknown to this program"):
            attempt()


@pytest.mark.parametrize("revision", ["0001", "0014", "1"])
def test_a_database_from_before_the_first_release_is_refused(revision: str, used_database: Database) -> None:
    execute(used_database, f"update alembic_version set version_num = '{revision}'")
    for attempt in (used_database.open, used_database.upgrade):
        with pytest.raises(LedgerError, match=rf"revision {revision}, unknown.*: use the version of farm that made it"):
            attempt()
    assert execute(used_database, "select count(*) from jobs") == [1]


def test_a_migration_can_be_undone(used_database: Database) -> None:
    engine = open_engine(used_database.settings.database_url)
    config = Config()
    config.set_main_option("script_location", MIGRATIONS.folder)
    config.attributes["engine"] = engine
    command.downgrade(config, "base")
    assert inspect(engine).get_table_names() == ["alembic_version"]
    engine.dispose()


def test_an_up_to_date_ledger_opens_without_alembic(tmp_path: Path) -> None:
    open_ledger(settings_in(tmp_path)).close()
    code = (
        "import sys; from farm.ledger import open_ledger; from farm.config.settings import load_settings;"
        f"open_ledger(load_settings({{'FARM_DATABASE_URL': 'sqlite:///{tmp_path / 'farm.db'}'}}));"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_migration_without_its_lock_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "farm.db.lock").mkdir()
    with pytest.raises(LedgerError, match=r"has to be migrated, but .*farm.db.lock cannot be made"):
        open_ledger(settings_in(tmp_path))


def test_the_migrations_run_from_wherever_the_packages_are(tmp_path: Path) -> None:
    packages, elsewhere = tmp_path / "100%(here)s", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("codegen", "farm", "migrations"):
        shutil.copytree(CHECKOUT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        f"import sys; sys.path.insert(0, {str(packages)!r}); import farm; assert {str(packages)!r} in farm.__file__;"
        "from farm.ledger import open_ledger; from farm.config.settings import load_settings;"
        f"open_ledger(load_settings({{'FARM_DATABASE_URL': 'sqlite:///{elsewhere / 'farm.db'}'}}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=elsewhere)
    assert database_revision(settings_in(elsewhere)) == (HEAD, HEAD)
