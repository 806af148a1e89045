"""The migrations make the tables that the code speaks of."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import migrations
from farm.errors import LedgerError
from farm.ledger import database_revision, open_ledger
from farm.ledger.engine import open_engine
from farm.ledger.schema import HEAD
from farm.ledger.tables import metadata
from farm.settings import Settings, load_settings

CHECKOUT = Path(migrations.__file__).parents[1]


def settings_in(folder: Path) -> Settings:
    return load_settings({"FARM_DATABASE_URL": f"sqlite:///{folder / 'farm.db'}"})


def open_and_count(folder: Path) -> int:
    ledger = open_ledger(settings_in(folder))
    try:
        return sum(ledger.counts().values())
    finally:
        ledger.close()


def test_the_migrated_database_has_exactly_the_tables_of_the_code(tmp_path: Path) -> None:
    open_ledger(settings_in(tmp_path)).close()
    engine = open_engine(settings_in(tmp_path).database_url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_the_newest_revision_is_the_one_the_code_asks_for() -> None:
    assert ScriptDirectory(str(Path(migrations.__file__).parent)).get_current_head() == HEAD


def test_opening_twice_migrates_once(tmp_path: Path) -> None:
    assert database_revision(settings_in(tmp_path)) == (None, HEAD)
    open_ledger(settings_in(tmp_path)).close()
    assert database_revision(settings_in(tmp_path)) == (HEAD, HEAD)
    open_ledger(settings_in(tmp_path)).close()


def test_four_processes_may_open_a_fresh_database_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(open_and_count, [tmp_path] * 4) == [0] * 4


def test_a_database_of_a_newer_program_is_refused_in_words(tmp_path: Path) -> None:
    open_ledger(settings_in(tmp_path)).close()
    with sqlite3.connect(tmp_path / "farm.db") as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    connection.close()
    with pytest.raises(LedgerError, match="revision 9999"):
        open_ledger(settings_in(tmp_path)).close()


def test_an_up_to_date_ledger_opens_without_alembic(tmp_path: Path) -> None:
    open_ledger(settings_in(tmp_path)).close()
    code = (
        "import sys; from farm.ledger import open_ledger; from farm.settings import load_settings;"
        f"open_ledger(load_settings({{'FARM_DATABASE_URL': 'sqlite:///{tmp_path / 'farm.db'}'}}));"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "farm.db") as connection:
        connection.execute("create table results (mine text)")  # the last table that the first migration makes
    with pytest.raises(LedgerError, match="results already exists"):
        open_ledger(settings_in(tmp_path))
    tables = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
    connection.close()
    assert tables == [("results",)]


def test_a_migration_that_cannot_be_locked_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "farm.db.lock").mkdir()
    with pytest.raises(LedgerError, match=r"has to be migrated, and .*farm.db.lock cannot be made"):
        open_ledger(settings_in(tmp_path))


def test_the_migrations_run_from_wherever_the_packages_lie(tmp_path: Path) -> None:
    packages, elsewhere = tmp_path / "100%(here)s", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("codegen", "farm", "migrations"):
        shutil.copytree(CHECKOUT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        f"import sys; sys.path.insert(0, {str(packages)!r}); import farm; assert {str(packages)!r} in farm.__file__;"
        "from farm.ledger import open_ledger; from farm.settings import load_settings;"
        f"open_ledger(load_settings({{'FARM_DATABASE_URL': 'sqlite:///{elsewhere / 'farm.db'}'}}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=elsewhere)
    assert database_revision(settings_in(elsewhere)) == (HEAD, HEAD)
