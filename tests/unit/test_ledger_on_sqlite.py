"""Ledgers in a file."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from farm.config.settings import load_settings
from farm.errors import LedgerError
from farm.ledger import open_ledger


def test_a_file_that_is_no_database_is_an_error_in_words(tmp_path: Path) -> None:
    path = tmp_path / "farm.db"
    path.write_text("not a database " * 100)
    with pytest.raises(LedgerError, match="not a database"):
        open_ledger(load_settings({"FARM_DATABASE_URL": f"sqlite:///{path}"}))


def test_a_database_in_a_folder_that_cannot_be_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot be made"):
        open_ledger(load_settings({"FARM_DATABASE_URL": f"sqlite:///{tmp_path / 'file' / 'farm.db'}"}))


def test_a_reader_is_not_kept_waiting_by_a_writer(tmp_path: Path) -> None:
    ledger = open_ledger(load_settings({"FARM_DATABASE_URL": f"sqlite:///{tmp_path / 'farm.db'}"}))
    other = sqlite3.connect(tmp_path / "farm.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    start = time.monotonic()
    assert ledger.jobs() == []
    assert time.monotonic() - start < 5
    other.execute("ROLLBACK")
    other.close()
    ledger.close()
