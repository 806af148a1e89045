"""Connections to an embedded database, where somebody else uses the file."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from sqlalchemy import text

from farm.ledger.database import open_engine


def test_the_first_connection_waits_for_whoever_writes_the_file_at_that_moment(tmp_path: Path) -> None:
    file = tmp_path / "farm.db"
    writer = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    writer.execute("create table mine (number int)")
    writer.execute("begin immediate")
    end = threading.Timer(0.2, writer.commit)
    end.start()
    engine = open_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        assert connection.execute(text("pragma journal_mode")).scalar() == "wal"
    engine.dispose()
    end.join()
    writer.close()
