"""Ledgers on a server: it may be away, refuse, or be migrated by somebody else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from cli.main import run
from farm.errors import LedgerAwayError, LedgerError
from farm.jobs.model import Status
from farm.ledger import open_ledger
from farm.ledger.database import Database as LedgerDatabase
from farm.ledger.database import open_engine
from farm.worker.messages import Request
from tests.services.conftest import MIGRATED, Database, settings_of
from tests.services.postgresql import PostgreSQL
from tests.services.test_ledger import new_job, submit
from tests.unit.farmyard import Farmyard


@contextmanager
def stopped(server: PostgreSQL) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


def test_a_server_that_is_away_is_said_to_be_and_found_again(
    postgresql: PostgreSQL, postgresql_database: Database
) -> None:
    ledger = postgresql_database.open()
    submit(ledger, new_job())
    with stopped(postgresql):
        for ask in (ledger.jobs, postgresql_database.open):
            with pytest.raises(LedgerAwayError, match=r"does not answer .* try again later"):
                ask()
    assert [job.id for job in ledger.jobs()] == ["aaaa1111"]
    ledger.close()


def test_a_ledger_may_wait_for_its_server(postgresql: PostgreSQL, postgresql_database: Database) -> None:
    ledger = postgresql_database.open()
    submit(ledger, new_job())
    with ThreadPoolExecutor(1) as pool:
        with stopped(postgresql):
            asked = pool.submit(ledger.waiting(60).jobs)
            time.sleep(1)
            assert not asked.done()
        assert [job.id for job in asked.result()] == ["aaaa1111"]
    ledger.close()


def test_a_connection_lost_within_a_transaction_is_a_server_away_and_leaves_nothing(
    postgresql_database: Database,
) -> None:
    engine = open_engine(postgresql_database.settings.database_url)

    def write_and_lose_the_connection() -> None:
        with LedgerDatabase(engine).writing() as connection:
            connection.execute(text("insert into keys values ('aa', 'cubin', '{}', 0)"))
            connection.execute(text("select pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(LedgerAwayError, match="terminating connection"):
        write_and_lose_the_connection()
    with LedgerDatabase(engine).writing() as connection:
        assert connection.execute(text("select count(*) from keys")).scalar() == 0
    engine.dispose()


def test_jobs_run_to_their_end_though_the_server_is_restarted(
    postgresql: PostgreSQL, postgresql_database: Database, tmp_path: Path
) -> None:
    farm = Farmyard(tmp_path, postgresql_database.settings.database_url)
    asked: list[Request] = []
    is_away = threading.Event()

    def play(request: Request) -> None:
        asked.append(request)
        if len(asked) == 3:
            postgresql.stop()
            is_away.set()

    ids = farm.submit("a", "b")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(farm.run, ids, play)
        assert is_away.wait(60)
        time.sleep(1)
        postgresql.start()
        jobs = running.result()
    assert [(job.status, job.done, job.tries) for job in jobs] == [(Status.SUCCEEDED, 4, 1)] * 2
    farm.ledger.close()


def test_a_log_is_followed_through_a_restart_of_the_server(
    postgresql: PostgreSQL,
    postgresql_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FARM_DATABASE_URL", postgresql_database.settings.database_url)
    ledger = postgresql_database.open()
    submit(ledger, new_job())
    ledger.claim_all(["aaaa1111"], "c", 60)
    ledger.add_event("aaaa1111", "info", "before")
    pauses = iter(("stop", "away", "start", "end"))

    def pause(_seconds: float) -> None:
        match next(pauses):
            case "stop":
                postgresql.stop()
            case "start":
                postgresql.start()
            case "end":
                ledger.add_event("aaaa1111", "info", "after")
                ledger.finish("aaaa1111", Status.FAILED, "why")

    monkeypatch.setattr("cli.commands.logs.sleep", pause)
    assert run(["logs", "-f", "aaaa1111"]) == 100
    out, err = capsys.readouterr()
    assert [line.split()[-1] for line in out.splitlines()] == ["before", "after"]
    assert err.count("does not answer") == 1
    ledger.close()


def test_a_permanent_failure_is_not_waited_for(postgresql: PostgreSQL) -> None:
    settings = settings_of(postgresql.url("nowhere"))
    start = time.monotonic()
    with pytest.raises(LedgerError, match='database "nowhere" does not exist') as caught:
        open_ledger(settings)
    assert not isinstance(caught.value, LedgerAwayError)
    assert time.monotonic() - start < 5


def test_claims_pass_over_what_another_is_about_to_take(postgresql_database: Database) -> None:
    ledger = postgresql_database.open()
    submit(ledger, *[new_job(each, each) for each in "abc"])
    engine = open_engine(postgresql_database.settings.database_url)
    with LedgerDatabase(engine).writing() as connection:
        connection.execute(text("select 1 from jobs where id = 'b' for no key update"))
        assert ledger.claim_all(["a", "b", "c"], "me", 60) == ["a", "c"]
    assert ledger.claim_all(["a", "b", "c"], "me", 60) == ["b"]
    engine.dispose()
    ledger.close()


def test_a_servers_database_is_migrated_only_when_asked(postgresql: PostgreSQL) -> None:
    name = postgresql.new_database()
    database = Database("postgresql", settings_of(postgresql.url(name)))
    with pytest.raises(LedgerError, match=r"is empty, this program needs revision .*: run farm db upgrade"):
        database.open()
    database.upgrade()
    database.open().close()
    postgresql.drop_database(name)


def test_no_message_holds_the_password() -> None:
    for url in (
        "postgresql://ada:s3c/ret@/farm?host=/nowhere",
        "postgresql://ada@/farm?host=/nowhere&password=s3c/ret",
    ):
        with pytest.raises(LedgerAwayError, match="No such file") as caught:
            open_ledger(settings_of(url))
        assert "s3c" not in str(caught.value)
        assert "ret" not in str(caught.value)


def test_a_missing_driver_is_named_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        LedgerError, match=r"in a checkout of this program, .* -m pip install '\.\[postgres\]'"
    ) as caught:
        open_ledger(settings_of("postgresql://ada:s3cret@host/farm"))
    assert "s3cret" not in str(caught.value)


def test_the_password_may_stand_in_a_service_file_that_others_may_read(
    postgresql: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service file is written as in infra/compose.yaml."""
    postgresql.require_password("grace", "hopper")
    services = tmp_path / "pg_service.conf"
    services.write_text("[farm]\npassword=hopper\n")
    services.chmod(0o444)
    settings = settings_of(postgresql.url(MIGRATED, "grace"))
    with pytest.raises(LedgerError, match="no password supplied"):
        open_ledger(settings)
    monkeypatch.setenv("PGSERVICE", "farm")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    open_ledger(settings).close()
