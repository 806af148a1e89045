"""Several coordinators and submitters at one ledger, on SQLite and on PostgreSQL."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from farm.jobs.model import Status
from farm.ledger import CoordinatorState, Ledger
from farm.ledger.database import Database as LedgerDatabase
from farm.ledger.database import one_at_a_time, open_engine
from farm.ledger.tables import jobs, submissions
from tests.services.conftest import Database
from tests.services.ledger_rows import new_job, result, submit
from tests.services.meeting import BARRIER, will_meet


def test_of_many_coordinators_one_gets_a_job(database: Database) -> None:
    ledgers = [database.open() for _ in range(8)]
    submit(ledgers[0], *[new_job(f"{i:08x}", f"r{i}") for i in range(10)])
    barrier = threading.Barrier(8)

    def claim_all(number: int) -> list[int]:
        barrier.wait()
        return [len(ledgers[number].claim_all([f"{i:08x}"], f"c{number}", 60)) for i in range(10)]

    with ThreadPoolExecutor(8) as pool:
        wins = list(pool.map(claim_all, range(8)))
    assert [sum(column) for column in zip(*wins, strict=True)] == [1] * 10
    assert {job.tries for job in ledgers[0].jobs()} == {1}
    for ledger in ledgers:
        ledger.close()


def claim_one_by_one(database: Database, name: str, job_ids: list[str], together: bool) -> list[str]:
    """The jobs that one process gets, which begins when the other does."""
    ledger = database.open()
    BARRIER[0].wait()
    try:
        if together:
            slices = [job_ids[i : i + 7] for i in range(0, len(job_ids), 7)]
            return [job_id for some in slices for job_id in ledger.claim_all(some, name, 60)]
        return [job_id for job_id in job_ids if ledger.claim_all([job_id], name, 60)]
    finally:
        ledger.close()


@pytest.mark.parametrize("together", [False, True])
def test_two_processes_that_race_never_claim_the_same_job(database: Database, ledger: Ledger, together: bool) -> None:
    ids = submit(ledger, *[new_job(f"{i:08x}", f"r{i}") for i in range(60)])
    context = multiprocessing.get_context("spawn")
    with context.Pool(2, initializer=will_meet, initargs=(context.Barrier(2),)) as pool:
        asked = [(database, name, ids, together) for name in ("first", "second")]
        first, second = pool.starmap(claim_one_by_one, asked, chunksize=1)
    assert sorted(first + second) == sorted(ids)
    assert {job.tries for job in ledger.jobs()} == {1}


def test_free_jobs_are_claimed_together_oldest_first(ledger: Ledger) -> None:
    submit(ledger, *[new_job(each, each) for each in "abcd"])
    ledger.claim_all(["b"], "alive", 60)
    assert ledger.claim_all(["d", "c", "b", "a", "missing"], "me", 60) == ["a", "c", "d"]
    assert ledger.claim_all(["a"], "me", 60) == []
    assert {job.id: job.tries for job in ledger.jobs()} == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_a_job_that_its_last_coordinator_did_not_plan_is_claimed_alone_in_its_turn(ledger: Ledger) -> None:
    submit(ledger, *[new_job(each, each) for each in "abcd"])
    ledger.claim_all(["b"], "dead", 0)
    time.sleep(0.05)
    assert [ledger.claim_all("abcd", "me", 60) for _ in range(4)] == [["a"], ["b"], ["c", "d"], []]
    assert {job.id: job.tries for job in ledger.jobs()} == {"a": 1, "b": 2, "c": 1, "d": 1}


def test_a_request_that_many_submit_at_once_is_one_job(database: Database) -> None:
    ledgers = [database.open() for _ in range(6)]
    barrier = threading.Barrier(6)

    def submit_one(number: int) -> list[str]:
        barrier.wait()
        return submit(ledgers[number], new_job(f"job{number}", "same"))

    with ThreadPoolExecutor(6) as pool:
        given = list(pool.map(submit_one, range(6)))
    assert len({job_id for [job_id] in given}) == 1
    assert len(ledgers[0].jobs()) == 1
    for ledger in ledgers:
        ledger.close()


def test_writers_of_the_same_keys_wait_for_one_another_and_not_for_ever(database: Database, ledger: Ledger) -> None:
    other = database.open()
    barrier = threading.Barrier(2)

    def record(writer: Ledger, step: int) -> None:
        for round_number in range(8):
            keys = [f"{round_number:032x}{i:032x}" for i in range(400)]
            barrier.wait(20)
            writer.record_keys("cubin", {key: {} for key in keys[::step]})

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(record, ledger, 1), pool.submit(record, other, -1)]:
            done.result()
    other.close()


def test_a_heartbeat_and_results_of_the_same_jobs_do_not_disturb_one_another(
    database: Database, ledger: Ledger
) -> None:
    ids = submit(ledger, *[new_job(f"{i:08x}", f"r{i}") for i in range(40)])
    ledger.claim_all(ids, "me", 60)
    built = [result(ledger.builds(each)[0].id) for each in ids]
    other = database.open()
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            other.extend_lease("me", 60)

    with ThreadPoolExecutor(1) as pool:
        beating = pool.submit(beat)
        for i in range(20):
            ledger.record_results(built[i:] + built[:i])
        over.set()
        beating.result()
    other.close()
    assert [job.done for job in ledger.jobs()] == [1] * 40


def test_a_status_does_not_wait_for_a_submission_that_is_being_written(database: Database, ledger: Ledger) -> None:
    submit(ledger, new_job("before", "r0"))
    engine = open_engine(database.settings.database_url)
    with LedgerDatabase(engine).writing() as connection, ThreadPoolExecutor(1) as pool:
        one_at_a_time(connection, submissions)
        # More than SQLite holds in memory of a transaction that is not committed.
        connection.execute(update(jobs).values(name="half written" * 500_000))

        def look() -> tuple[list[str], dict[Status, int], list[CoordinatorState]]:
            reader = database.open()  # as a new `farm status` does, which also asks for the revision
            try:
                return [job.name for job in reader.jobs(limit=20)], reader.counts(), reader.coordinators.all()
            finally:
                reader.close()

        assert pool.submit(look).result(10) == (["net"], {Status.PENDING: 1}, [])
    engine.dispose()
