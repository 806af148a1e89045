"""Where the migrations lie, when Alembic is imported, and the lock of a database in a file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

import migrations
from farm.config.settings import Settings, load_settings
from farm.errors import LedgerError
from farm.ledger import database_revision, open_ledger
from farm.ledger.schema import HEAD

CHECKOUT = Path(migrations.__file__).parents[1]


def settings_in(folder: Path) -> Settings:
    return load_settings({"FARM_DATABASE_URL": f"sqlite:///{folder / 'farm.db'}"})


def test_the_newest_revision_is_the_one_the_code_asks_for() -> None:
    assert ScriptDirectory(str(Path(migrations.__file__).parent)).get_current_head() == HEAD


def test_an_up_to_date_ledger_opens_without_alembic(tmp_path: Path) -> None:
    open_ledger(settings_in(tmp_path)).close()
    code = (
        "import sys; from farm.ledger import open_ledger; from farm.config.settings import load_settings;"
        f"open_ledger(load_settings({{'FARM_DATABASE_URL': 'sqlite:///{tmp_path / 'farm.db'}'}}));"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
        "from farm.ledger import open_ledger; from farm.config.settings import load_settings;"
        f"open_ledger(load_settings({{'FARM_DATABASE_URL': 'sqlite:///{elsewhere / 'farm.db'}'}}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=elsewhere)
    assert database_revision(settings_in(elsewhere)) == (HEAD, HEAD)
