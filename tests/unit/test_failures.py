"""The coordinator's reaction to each kind of failure and to jobs that others change; tools are played."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.exit_codes import exit_code_of_job
from farm.errors import StoreUnavailableError, UnreachableError
from farm.jobs.model import JobSet, Status
from farm.scheduler.retry import Attempts, RetryPolicy
from farm.store.contract import Record
from farm.store.memory import MemoryStore
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Result, TemplateRequest, failed
from tests.samples import SMALLER
from tests.unit.farmyard import Farmyard, PlayedExecutor


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farmyard]:
    farm = Farmyard(tmp_path)
    yield farm
    farm.ledger.close()


def warnings(farm: Farmyard, job_id: str) -> list[str]:
    return [event.text for event in farm.ledger.events(job_id) if event.level == "warning"]


def test_out_of_memory_is_retried_once_with_twice_the_limit_and_then_fails(farm: Farmyard) -> None:
    limits: list[int | None] = []

    def play(request: Request) -> Result | None:
        if isinstance(request, TemplateRequest):
            return None
        limits.append(request.memory_limit_bytes)
        mebibytes = (request.memory_limit_bytes or farm.settings.tool_memory_bytes) // 2**20
        return failed(request, Failure(Fault.MEMORY, f"ptxas needs more than its limit of {mebibytes} MiB"))

    [job] = farm.run(farm.submit("a", archs=("sm_90",)), play)
    assert limits == [None, 16 * 2**30] * 2 or limits == [None, None, 16 * 2**30, 16 * 2**30]
    assert (job.status, job.fault, exit_code_of_job(job)) == (Status.FAILED, "memory", 100)
    assert "more than its limit of 16384 MiB" in job.reason


def test_memory_is_never_raised_above_what_the_settings_allow(farm: Farmyard) -> None:
    farm.settings = replace(farm.settings, tool_memory_most_bytes=farm.settings.tool_memory_bytes)
    retries = RetryPolicy(farm.settings, "13.0.88")
    [job_id] = farm.submit("a")
    farm.run([job_id])
    request = farm.executor.submitted[0]
    assert retries.after(request, Failure(Fault.MEMORY, "m"), Attempts(), 0.0) is None


def test_a_fallback_that_another_job_wants_too_is_built_once_for_both(farm: Farmyard) -> None:
    def play(request: Request) -> Result | None:
        slow = isinstance(request, CubinRequest) and request.options == ("-O3",)
        return failed(request, Failure(Fault.TIME, "ptxas ran into its time limit of 600 s")) if slow else None

    high, low = farm.submit("a", archs=("sm_90",)), farm.submit("b", archs=("sm_90",), optimisation=1)
    first, second = farm.run(high + low, play)
    assert (first.status, second.status) == (Status.SUCCEEDED, Status.SUCCEEDED)
    assert len([each for each in farm.executor.submitted if isinstance(each, CubinRequest)]) == 2 + 2
    of_first, of_second = farm.results(first.id), farm.results(second.id)
    assert {result.optimisation for result in of_first + of_second} == {1}
    assert [result.cubin_key for result in of_first] == [result.cubin_key for result in of_second]
    for result in of_first:
        assert (farm.ledger.key_fields(result.cubin_key) or {})["options"] == '["-O1"]'


def test_a_blob_lost_for_good_crashes_the_job_with_its_own_exit_code(farm: Farmyard) -> None:
    def play(request: Request) -> Result | None:
        lost = isinstance(request, CubinRequest) and request.template.spec == SMALLER
        return failed(request, Failure(Fault.LOST, "the weights abc are no longer in the store")) if lost else None

    [job] = farm.run(farm.submit("a"), play)
    assert (job.status, job.fault, exit_code_of_job(job)) == (Status.CRASHED, "lost", 39)


class AwayStore(MemoryStore):
    """Does not answer the first look-ups of cubins."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def get_record(self, stage: str, key: str) -> Record | None:
        if stage == "cubin" and self.times > 0:
            self.times -= 1
            raise StoreUnavailableError("the store does not answer")
        return super().get_record(stage, key)


def test_an_unreachable_store_is_waited_for_and_the_status_says_so(farm: Farmyard) -> None:
    farm.store = AwayStore(2)
    [job_id] = farm.submit("a", archs=("sm_90",))
    reasons: list[str] = []

    def play(request: Request) -> None:
        reasons.append(farm.ledger.job(job_id).reason)

    [job] = farm.run([job_id], play)
    assert (job.status, job.reason, farm.store.times) == (Status.SUCCEEDED, "", 0)
    assert reasons[0].startswith("waiting for the store")
    assert "the store does not answer" in reasons[0]
    assert len(warnings(farm, job_id)) == 2


def test_a_cancelled_job_is_dropped_and_what_another_needs_is_built(farm: Farmyard) -> None:
    [first] = farm.submit("a", parts=2)
    [second] = farm.submit("b", parts=1)
    cancelled: list[str] = []

    def play(request: Request) -> None:
        if isinstance(request, CubinRequest) and not cancelled:
            cancelled.extend(farm.ledger.cancel(JobSet(ids=(first,)), "cancelled by ada"))

    jobs = farm.run([first, second], play, capacity=3)
    assert cancelled == [first]
    assert [(job.status, job.reason) for job in jobs] == [
        (Status.CANCELLED, "cancelled by ada"),
        (Status.SUCCEEDED, ""),
    ]
    assert exit_code_of_job(jobs[0]) == 103
    assert jobs[1].done == 4


def test_a_coordinator_serves_whatever_is_pending(farm: Farmyard) -> None:
    ids = farm.submit("a", "b") + farm.submit("c")
    executor = PlayedExecutor(farm.store)
    farm.coordinator(executor).serve(drain=True)
    assert [farm.ledger.job(each).status for each in ids] == [Status.SUCCEEDED] * 3
    assert farm.ledger.coordinators.all() == []


def test_a_job_submitted_while_it_serves_is_taken_on_at_once(farm: Farmyard) -> None:
    farm.submit("a", parts=4)
    late: list[str] = []

    def play(request: Request) -> None:
        if not late:
            late.extend(farm.submit("b", parts=4, archs=("sm_75",)))

    farm.coordinator(PlayedExecutor(farm.store, play)).serve(drain=True)
    assert farm.ledger.job(late[0]).status is Status.SUCCEEDED


def test_a_coordinator_that_serves_and_loses_its_workers_gives_the_jobs_back(farm: Farmyard) -> None:
    [job_id] = farm.submit("a")

    def play(request: Request) -> None:
        raise UnreachableError("the Ray cluster is gone")

    with pytest.raises(UnreachableError):
        farm.coordinator(PlayedExecutor(farm.store, play)).serve(drain=True)
    job = farm.ledger.job(job_id)
    assert job.status is Status.PENDING
    assert "the Ray cluster is gone" in job.reason
    assert farm.ledger.coordinators.all() == []


def test_a_coordinator_that_is_interrupted_gives_its_jobs_and_its_keys_back(farm: Farmyard) -> None:
    farm.submit("a")

    def play(request: Request) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        farm.coordinator(PlayedExecutor(farm.store, play)).serve()
    executor = PlayedExecutor(farm.store)
    farm.coordinator(executor).serve(drain=True)
    assert farm.ledger.counts() == {Status.SUCCEEDED: 1}


def test_a_job_that_cannot_be_planned_fails_and_no_other_with_it(farm: Farmyard) -> None:
    [bad] = farm.submit("a", archs=("sm_7",))
    [good] = farm.submit("b")
    jobs = farm.run([bad, good])
    assert [job.status for job in jobs] == [Status.FAILED, Status.SUCCEEDED]
    assert "cannot be planned" in jobs[0].reason


def test_a_job_that_was_claimed_when_the_database_went_away_is_not_forgotten(farm: Farmyard) -> None:
    [job_id] = farm.submit("a")
    coordinator = farm.coordinator(PlayedExecutor(farm.store))
    assert farm.ledger.claim_all([job_id], coordinator.name, 60)  # the answer never came
    [job] = coordinator.run([job_id])
    assert (job.status, job.tries) == (Status.SUCCEEDED, 1)


def test_a_retry_builds_only_what_did_not_succeed(farm: Farmyard) -> None:
    def play(request: Request) -> Result | None:
        bad = isinstance(request, CubinRequest) and request.arch == "sm_90"
        return failed(request, Failure(Fault.FARM, "the disk is full")) if bad else None

    [job_id] = farm.submit("a")
    [job] = farm.run([job_id], play)
    assert (job.status, job.done) == (Status.CRASHED, 2)
    assert farm.ledger.retry(JobSet(ids=(job_id,)), "again") == [job_id]
    [job] = farm.run([job_id])
    assert (job.status, job.hits, job.tries, job.fault) == (Status.SUCCEEDED, 2, 2, "")
    assert {type(each) for each in farm.executor.submitted} == {CubinRequest}
    assert all(isinstance(each, CubinRequest) and each.arch == "sm_90" for each in farm.executor.submitted)


class Fallback(PlayedExecutor):
    """ptxas runs into its time limit at -O3; while it runs at -O1 the job is cancelled, and then asked for at -O1."""

    def __init__(self, farm: Farmyard, job_id: str) -> None:
        super().__init__(farm.store, self.time_out)
        self.farm = farm
        self.job_id = job_id
        self.again: list[str] = []

    def time_out(self, request: Request) -> Result | None:
        slow = isinstance(request, CubinRequest) and request.options == ("-O3",)
        return failed(request, Failure(Fault.TIME, "ptxas ran into its time limit of 600 s")) if slow else None

    def wait(self, timeout_seconds: float) -> list[Result]:
        flies = {each.options for each in self._waiting if isinstance(each, CubinRequest)}
        if self.again or flies != {("-O1",)}:
            return super().wait(timeout_seconds)
        self.farm.ledger.cancel(JobSet(ids=(self.job_id,)), "cancelled by ada")
        return []  # until the coordinator notices

    def cancel(self, keys: Collection[str]) -> None:
        super().cancel(keys)
        if keys and not self.again:
            self.again = self.farm.submit("again", archs=("sm_90",), optimisation=1)


def test_a_cancelled_fallback_is_built_for_a_job_that_asks_for_it_later(farm: Farmyard) -> None:
    farm.settings = replace(farm.settings, job_timeout_seconds=5)
    [job_id] = farm.submit("a", archs=("sm_90",))
    executor = Fallback(farm, job_id)
    farm.coordinator(executor).serve(drain=True)
    assert farm.ledger.job(job_id).status is Status.CANCELLED
    [again] = executor.again
    job = farm.ledger.job(again)
    assert (job.status, job.reason, job.done) == (Status.SUCCEEDED, "", 2)


def test_a_job_that_shares_what_is_in_flight_has_begun_and_has_its_time_limit(farm: Farmyard) -> None:
    farm.settings = replace(farm.settings, job_timeout_seconds=0.5)
    [first] = farm.submit("a", archs=("sm_90",))
    later: list[str] = []

    class Endless(PlayedExecutor):
        def wait(self, timeout_seconds: float) -> list[Result]:
            if not later and any(isinstance(each, CubinRequest) for each in self._waiting):
                later.extend(farm.submit("b", archs=("sm_90",)))
            if later:
                time.sleep(0.02)
                return []
            return super().wait(timeout_seconds)

    farm.coordinator(Endless(farm.store)).serve(drain=True)
    for job_id in (first, *later):
        job = farm.ledger.job(job_id)
        assert (job.status, job.fault) == (Status.FAILED, "time")
        assert job.started_at is not None
