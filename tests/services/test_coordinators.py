"""Coordinators at one ledger, on SQLite and on PostgreSQL: fencing, single-flight builds, liveness."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import update

from codegen.ir.tiling import Tiling
from farm.jobs.model import Job, JobSet, Status
from farm.ledger import Ledger
from farm.ledger.running_jobs import Outlook
from farm.ledger.tables import coordinators, jobs
from farm.scheduler.in_flight import InFlightKeys
from farm.worker.cache_lookup import find_cubin, find_template
from farm.worker.messages import CubinRequest, Request, Result, TemplateResult
from tests.services.conftest import Database
from tests.services.ledger_rows import new_job, result, submit
from tests.services.meeting import BARRIER, will_meet
from tests.unit.farmyard import Farmyard, PlayedClock, PlayedExecutor

TILING = Tiling("conv2d", 8, 8, 1, 4, 3, 2)
KEYS = [f"{i:064x}" for i in range(40)]


@pytest.fixture
def farm(database: Database, tmp_path: Path) -> Iterator[Farmyard]:
    farm = Farmyard(tmp_path, database.settings.database_url)
    yield farm
    farm.ledger.close()


def end_leases(ledger: Ledger) -> None:
    """End all leases, as if every coordinator had been asleep for longer than its lease."""
    with ledger._database.writing() as connection:
        connection.execute(update(jobs).where(jobs.c.lease_until.is_not(None)).values(lease_until=0))
        connection.execute(update(coordinators).values(lease_until=0))


def test_a_coordinator_that_slept_beyond_its_lease_writes_nothing_when_it_wakes(farm: Farmyard) -> None:
    [job_id] = farm.submit("a")
    second = farm.coordinator(PlayedExecutor(farm.store))
    asleep: list[str] = []
    after: list[object] = []

    def play(request: Request) -> None:
        if isinstance(request, CubinRequest) and not asleep:
            asleep.append(request.key)
            end_leases(farm.ledger)
            second.run([job_id])
            after.extend([farm.ledger.job(job_id), farm.results(job_id), farm.ledger.events(job_id)])

    [job] = farm.run([job_id], play)
    assert asleep
    assert (job.status, job.tries) == (Status.SUCCEEDED, 2)
    assert [farm.ledger.job(job_id), farm.results(job_id), farm.ledger.events(job_id)] == after


def test_no_state_of_a_job_that_was_lost_can_be_changed(ledger: Ledger) -> None:
    submit(ledger, new_job())
    ledger.claim_all(["aaaa1111"], "slow", 60)
    build = ledger.builds("aaaa1111")[0].id
    end_leases(ledger)
    assert ledger.claim_all(["aaaa1111"], "next", 60)
    ledger.record_results([result(build)], holder="next")
    before = ledger.job("aaaa1111"), ledger.results("aaaa1111")
    ledger.record_results([result(build, "sm_90")], holder="slow")
    ledger.forget_results("aaaa1111", holder="slow")
    ledger.running.set_stage(["aaaa1111"], "assemble", holder="slow")
    ledger.running.set_reason(["aaaa1111"], "asleep", holder="slow")
    ledger.running.set_outlooks({"aaaa1111": Outlook(2, 60.0)}, holder="slow")
    ledger.release("slow", "asleep")
    assert not ledger.finish("aaaa1111", Status.FAILED, "asleep", holder="slow")
    assert (ledger.job("aaaa1111"), ledger.results("aaaa1111")) == before
    assert (ledger.held("slow"), ledger.held("next")) == (set(), {"aaaa1111"})
    assert ledger.finish("aaaa1111", Status.FAILED, "awake", holder="next", fault="input")
    assert (ledger.job("aaaa1111").reason, ledger.job("aaaa1111").fault) == ("awake", "input")


def test_free_jobs_are_claimed_oldest_first_and_no_more_than_asked_for(ledger: Ledger) -> None:
    assert ledger.claim_next("me", 60, 5) == []
    submit(ledger, *[new_job(each, each) for each in "abcd"])
    assert ledger.claim_next("me", 60, 3) == ["a", "b", "c"]
    assert ledger.claim_next("another", 60, 3) == ["d"]
    for holder, planned in (("me", "abc"), ("another", "d")):
        ledger.running.set_planned(list(planned), holder=holder)
    end_leases(ledger)
    assert ledger.claim_next("heir", 60, 9) == ["a", "b", "c", "d"]


def test_a_key_is_built_by_one_coordinator_until_it_lands_leaves_or_dies(ledger: Ledger) -> None:
    alive = ledger.coordinators
    for name in ("first", "second"):
        alive.register(name, "node", serves=True, lease_seconds=60)
    assert set(alive.acquire_keys("first", KEYS[:3], local=False)) == set(KEYS[:3])
    assert set(alive.acquire_keys("second", KEYS[1:5], local=False)) == set(KEYS[3:5])
    assert set(alive.acquire_keys("first", KEYS[:5], local=False)) == set(KEYS[:3])
    alive.release_keys("second", KEYS[:3])  # not its own
    assert set(alive.acquire_keys("second", KEYS[:3], local=False)) == set()
    alive.release_keys("first", KEYS[:1])
    assert set(alive.acquire_keys("second", KEYS[:3], local=False)) == {KEYS[0]}
    end_leases(ledger)
    alive.beat("second", 60, [])
    assert set(alive.acquire_keys("second", KEYS[:3], local=False)) == set(KEYS[:3])
    alive.leave("second")
    alive.register("third", "node", serves=True, lease_seconds=60)
    assert set(alive.acquire_keys("third", KEYS, local=False)) == set(KEYS)


def race(database: Database, name: str) -> set[str]:
    """The keys that one process gets, which begins when the other does."""
    ledger = database.open()
    ledger.coordinators.register(name, "node", serves=True, lease_seconds=60)
    BARRIER[0].wait()
    try:
        batches = [KEYS[i : i + 8] for i in range(0, 40, 8)]
        return {key for some in batches for key in ledger.coordinators.acquire_keys(name, some, local=False)}
    finally:
        ledger.close()


def test_two_processes_that_race_never_build_the_same_key(database: Database, ledger: Ledger) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2, initializer=will_meet, initargs=(context.Barrier(2),)) as pool:
        first, second = pool.starmap(race, [(database, "first"), (database, "second")], chunksize=1)
    assert (first | second, first & second) == (set(KEYS), set())


def test_coordinators_with_the_same_cubins_build_each_of_them_once(database: Database, tmp_path: Path) -> None:
    farms = [Farmyard(tmp_path, database.settings.database_url) for _ in range(2)]
    farms[1].store = farms[0].store
    barrier = threading.Barrier(2)
    store, built = farms[0].store, list[str]()

    def play(request: Request) -> Result | None:
        """Asks the store first, as every worker does."""
        if isinstance(request, CubinRequest):
            found = find_cubin(store, request.key)
        else:
            found = TemplateResult(request.key, hit=True) if find_template(store, request.key) else None
        if found is None:
            built.append(request.key)
        return found

    def run(farm: Farmyard, name: str) -> Job:
        [job_id] = farm.submit(name, parts=20)
        barrier.wait()
        [job] = farm.run([job_id], play)
        return job

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(run, farms, "ab"))
    assert len(built) == len(set(built)) == 2 + 80
    assert [(job.status, job.done) for job in ended] == [(Status.SUCCEEDED, 80)] * 2
    assert sum(job.hits for job in ended) == 80
    for farm in farms:
        farm.ledger.close()


def test_who_is_alive_and_what_its_workers_do_is_known(ledger: Ledger) -> None:
    alive = ledger.coordinators
    assert (alive.all(), alive.any_serves()) == ([], False)
    alive.register("compiles", "laptop", serves=False, lease_seconds=60)
    assert not alive.any_serves()
    alive.register("serves", "server", serves=True, lease_seconds=60)
    assert alive.any_serves()
    submit(ledger, new_job("a", "a"), new_job("b", "b"), new_job("c", "c"))
    ledger.claim_all(["a", "b"], "serves", 60)
    alive.beat("serves", 60, [{"id": "w1", "running": 2}])
    assert [(each.id, each.node, each.serves, each.alive, each.jobs, each.workers) for each in alive.all()] == [
        ("compiles", "laptop", False, True, 0, ()),
        ("serves", "server", True, True, 2, ({"id": "w1", "running": 2},)),
    ]
    end_leases(ledger)
    assert [each.alive for each in alive.all()] == [False, False]
    assert not alive.any_serves()


def test_a_coordinator_that_wakes_after_hours_is_alive_again(ledger: Ledger) -> None:
    alive = ledger.coordinators
    alive.register("sleeper", "node", serves=True, lease_seconds=60)
    with ledger._database.writing() as connection:
        connection.execute(update(coordinators).values(seen=coordinators.c.seen - 7200, lease_until=0))
    alive.register("next", "node", serves=False, lease_seconds=60)
    assert ([each.id for each in alive.all()], alive.any_serves()) == (["next"], False)
    alive.beat("sleeper", 60, [])
    assert ([each.id for each in alive.all() if each.alive], alive.any_serves()) == (["sleeper", "next"], True)


def test_cancelling_ends_what_has_not_ended_and_nothing_else(ledger: Ledger) -> None:
    submit(ledger, *[new_job(each, each) for each in "abc"])
    submit(ledger, new_job("d", "d"), new_job("e", "e"))
    ledger.claim_all(["b", "c"], "me", 60)
    ledger.finish("c", Status.FAILED, "no")
    assert ledger.cancel(JobSet(ids=("a", "c")), "enough") == ["a"]
    assert sorted(ledger.cancel(JobSet(submission="s-a"), "enough")) == ["b"]
    assert ledger.held("me") == set()
    assert sorted(ledger.cancel(JobSet(), "enough")) == ["d", "e"]
    assert ledger.cancel(JobSet(), "enough") == []
    assert {job.id: (job.status, job.reason) for job in ledger.jobs()} == {
        **dict.fromkeys("abde", (Status.CANCELLED, "enough")),
        "c": (Status.FAILED, "no"),
    }
    assert ledger.job("b").finished_at is not None


def test_a_retry_brings_back_what_ended_without_success_once(ledger: Ledger) -> None:
    submit(ledger, *[new_job(each, each) for each in "abcde"])
    ledger.claim_all("abc", "me", 60)
    for job_id, status in (("a", Status.SUCCEEDED), ("b", Status.FAILED), ("c", Status.CRASHED)):
        ledger.finish(job_id, status, "why", fault="farm")
    ledger.cancel(JobSet(ids=("d",)), "enough")
    assert sorted(ledger.retry(JobSet(), "again")) == ["b", "c", "d"]
    assert ledger.retry(JobSet(), "again") == []
    job = ledger.job("b")
    assert (job.status, job.reason, job.fault, job.finished_at) == (Status.PENDING, "again", "", None)
    assert ledger.claim_next("me", 60, 9) == ["b", "c", "d", "e"]


def test_a_thousand_jobs_are_cancelled_in_one_statement(ledger: Ledger) -> None:
    ids = submit(ledger, *[new_job(f"{i:012x}", f"r{i}") for i in range(1000)])
    ledger.claim_all(ids[:500], "me", 60)
    assert len(ledger.cancel(JobSet(submission=f"s-{ids[0]}"), "enough")) == 1000
    assert ledger.counts() == {Status.CANCELLED: 1000}


def test_keys_that_others_build_are_set_aside_and_acquired_later(ledger: Ledger) -> None:
    alive = ledger.coordinators
    for name in ("me", "other"):
        alive.register(name, "node", serves=True, lease_seconds=60)
    alive.acquire_keys("other", [KEYS[1]], local=False)
    clock = PlayedClock()
    keys = InFlightKeys(alive, "me", clock)
    assert set(keys.acquire(KEYS[:2], local=False)) == {KEYS[0]}
    assert set(keys.acquire_later([KEYS[1]], local=False)) == set()
    alive.release_keys("other", [KEYS[1]])
    assert set(keys.acquire_later([KEYS[1]], local=False)) == set()  # not so soon
    clock.sleep(1)
    assert set(keys.acquire_later([KEYS[1]], local=False)) == {KEYS[1]}
    keys.release(KEYS[0])
    keys.flush(at_once=False)
    assert set(alive.acquire_keys("other", KEYS[:2], local=False)) == {KEYS[0]}
    keys.release(KEYS[1])
    keys.flush(at_once=True)
    assert set(alive.acquire_keys("other", KEYS[:2], local=False)) == set(KEYS[:2])


def test_a_key_that_was_given_back_and_is_built_again_stays_ours(ledger: Ledger) -> None:
    alive = ledger.coordinators
    for name in ("me", "other"):
        alive.register(name, "node", serves=True, lease_seconds=60)
    keys = InFlightKeys(alive, "me", PlayedClock())
    for _ in range(2):
        assert set(keys.acquire([KEYS[0]], local=False)) == {KEYS[0]}
        keys.release(KEYS[0])
    assert set(keys.acquire([KEYS[0]], local=False)) == {KEYS[0]}
    keys.flush(at_once=True)
    assert set(alive.acquire_keys("other", [KEYS[0]], local=False)) == set()
