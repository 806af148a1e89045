"""Signals that come while a transaction is open."""

from __future__ import annotations

import gc
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import event, text

from farm.errors import LedgerError
from farm.ledger import database as database_module
from farm.ledger.database import Database, open_engine
from farm.ledger.interruptions import held_back


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0)
    database = Database(open_engine(f"sqlite:///{tmp_path / 'farm.db'}"))
    with database.writing() as connection:
        connection.execute(text("create table mine (number int)"))
    yield database
    database.engine.dispose()


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal whose handler raises KeyboardInterrupt, as the one of SIGINT does by itself."""
    before = signal.signal(request.param, signal.default_int_handler)
    yield request.param
    signal.signal(request.param, before)


def write(database: Database, meanwhile: Callable[[], object] = lambda: None) -> None:
    with database.writing() as connection:
        connection.execute(text("insert into mine values (1)"))
        meanwhile()


def hold_back(*numbers: signal.Signals) -> None:
    with held_back():
        for number in numbers:
            signal.raise_signal(number)


def count(database: Database) -> int:
    with database.reading() as connection:
        return int(connection.execute(text("select count(*) from mine")).scalar_one())


def interrupted(moment: int, number: signal.Signals, action: Callable[[], None]) -> KeyboardInterrupt | None:
    """The interruption of an action by a signal at its n-th moment; None if it has fewer.

    A moment is where Python handles signals: the start of a function, and the return from one in C.
    """
    left = moment

    def profile(_frame: FrameType, what: str, _argument: Any) -> None:
        nonlocal left
        if what in ("call", "c_return"):
            left -= 1
            if left == 0:
                signal.raise_signal(number)

    before = sys.getprofile()
    gc.disable()  # Python ignores what is raised in a collection
    sys.setprofile(profile)
    try:
        action()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.setprofile(before)
        gc.enable()
    assert left > 0, "the signal is lost"
    return None


def test_an_interruption_at_any_moment_of_writing_leaves_no_lock(database: Database, number: signal.Signals) -> None:
    moments = 0
    # While the error is kept, its traceback keeps whatever the transaction held.
    while error := interrupted(moments + 1, number, lambda: write(database)):
        moments += 1
        write(database)
        assert signal.getsignal(number) is signal.default_int_handler, f"after {error!r}"
        database.engine.dispose()  # SQLAlchemy's pool loses a connection that it was just handing out
    assert moments > 100
    assert count(database) > moments


def test_an_interruption_at_any_moment_of_reading_stays_an_interruption(
    database: Database, number: signal.Signals
) -> None:
    moments = 0
    while interrupted(moments + 1, number, lambda: count(database)):
        moments += 1
        database.engine.dispose()
    assert moments > 100


def test_a_signal_within_a_transaction_is_handled_after_it(database: Database, number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(database, lambda: signal.raise_signal(number))
    assert count(database) == 1


def test_a_second_signal_is_handled_at_once(database: Database, number: signal.Signals) -> None:
    def insist() -> None:
        signal.raise_signal(number)
        signal.raise_signal(number)
        pytest.fail("the second signal is held back")

    with pytest.raises(KeyboardInterrupt):
        write(database, insist)
    assert count(database) == 0
    write(database)


def test_a_signal_that_the_handler_ignores_from_then_on_stays_ignored(number: signal.Signals) -> None:
    def once(_number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(number, once)
    with pytest.raises(KeyboardInterrupt):
        hold_back(number, number)
    assert signal.getsignal(number) is signal.SIG_IGN


def test_a_signal_without_a_python_handler_is_left_alone(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with held_back():
        assert signal.getsignal(number) is signal.SIG_IGN


def test_a_failed_transaction_handles_the_signal_too(database: Database, number: signal.Signals) -> None:
    def fail() -> None:
        signal.raise_signal(number)
        raise ValueError

    with pytest.raises(KeyboardInterrupt):
        write(database, fail)
    assert count(database) == 0


def test_an_interruption_after_which_the_driver_fails_stays_an_interruption(database: Database) -> None:
    def interrupt(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise sqlite3.ProgrammingError("the connection is in use")

    event.listen(database.engine, "do_execute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        count(database)


def test_a_failure_of_the_clean_up_after_an_interruption_is_a_failure(database: Database) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    event.listen(database.engine, "do_execute", fail)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(LedgerError, match="disk I/O error"):
            count(database)


def test_another_thread_leaves_the_handlers_alone(number: signal.Signals) -> None:
    def hold() -> None:
        with held_back():
            seen.append(signal.getsignal(number))

    seen: list[object] = []
    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
