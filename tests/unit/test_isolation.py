"""A job that cannot be read, planned or built harms no other job and no coordinator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy import Table, update

from farm.api import Farm
from farm.errors import LedgerError, UnreadableJobError
from farm.jobs.model import JOB_FORMAT, NO_COORDINATOR, Build, Job, JobSet, NewJob, Status
from farm.ledger import Ledger
from farm.ledger.tables import builds, coordinators, jobs
from farm.scheduler import held_jobs
from farm.scheduler.held_jobs import MAX_CLAIMS
from farm.scheduler.plan import Plan, plan, plan_of
from farm.worker.cache_lookup import CUBIN_STAGE
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Result, failed
from tests.unit.farmyard import Farmyard, PlayedExecutor


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farmyard]:
    farm = Farmyard(tmp_path)
    yield farm
    farm.ledger.close()


def write(farm: Farmyard, table: Table, **values: Any) -> None:
    """Overwrites columns of every row of a table."""
    with farm.ledger._database.writing() as connection:
        connection.execute(update(table).values(values))


def end_leases(farm: Farmyard) -> None:
    write(farm, jobs, lease_until=0)
    write(farm, coordinators, lease_until=0)


def serve(farm: Farmyard, *names: str) -> dict[str, Job]:
    """All jobs by name, after a coordinator has drained the farm."""
    farm.submit(*names)
    farm.coordinator(PlayedExecutor(farm.store)).serve(drain=True)
    return {job.name: job for job in farm.ledger.jobs()}


def logged(farm: Farmyard, job: Job) -> str:
    return "\n".join(event.text for event in farm.ledger.events(job.id))


@pytest.mark.parametrize(
    ("table", "values", "what"),
    [
        (builds, {"spec": {"step": "from_next_version"}}, "KeyError"),
        (builds, {"tiling": {"kernel": "conv2d", "turned": True}}, "TypeError"),
        (builds, {"parts": 7}, "TypeError"),
        (jobs, {"options": {"archs": ["sm_90"], "batches": [1], "gpus": [], "shared": [], "colour": "red"}}, "colour"),
        (jobs, {"skipped": [{"name": "pool"}]}, "TypeError"),
    ],
)
def test_a_job_that_cannot_be_read_ends_alone_with_its_trace_in_its_log(
    farm: Farmyard, table: Table, values: dict[str, Any], what: str
) -> None:
    [poison] = farm.submit("poison")
    write(farm, table, **values)
    found = serve(farm, "a", "b")
    assert [found[name].status for name in "ab"] == [Status.SUCCEEDED] * 2
    assert (found["poison"].status, found["poison"].tries) == (Status.CRASHED, MAX_CLAIMS)
    assert what in found["poison"].reason
    assert logged(farm, found["poison"]).count("\nfarm.errors.UnreadableJobError") == MAX_CLAIMS
    assert poison not in farm.ledger.unfinished([poison])


@pytest.mark.parametrize(("table", "values"), [(builds, {"spec": {"kind": "new"}}), (jobs, {"options": ["new"]})])
def test_showing_a_job_that_cannot_be_read_is_an_error_with_a_way_out(
    farm: Farmyard, table: Table, values: dict[str, Any]
) -> None:
    [poison] = farm.submit("poison")
    write(farm, table, **values)
    with pytest.raises(UnreadableJobError, match=rf"{poison} cannot be read .* use the version of farm that submitted"):
        Farm(farm.settings, farm.store, farm.ledger).inspect(poison)


def test_a_job_whose_planning_raises_anything_ends_alone(farm: Farmyard, monkeypatch: pytest.MonkeyPatch) -> None:
    def defective(work: Sequence[tuple[Job | NewJob, Sequence[Build]]], *others: Any) -> Plan:
        if any(job.name == "poison" for job, _ in work):
            raise ZeroDivisionError("rows of nothing")
        return plan(work, *others)

    monkeypatch.setattr(held_jobs, "plan", defective)
    found = serve(farm, "a", "poison", "b")
    assert [found[name].status for name in "ab"] == [Status.SUCCEEDED] * 2
    assert found["poison"].status is Status.CRASHED
    assert found["poison"].reason == "planning failed with ZeroDivisionError: rows of nothing. farm logs has the trace."
    assert "in defective" in logged(farm, found["poison"])


def test_a_job_whose_layer_cannot_be_split_ends_alone_while_its_other_cubins_are_built(
    farm: Farmyard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defective(job: Job, *others: Any) -> Plan:
        if job.name == "poison":
            raise ZeroDivisionError("parts of nothing")
        return plan_of(job, *others)

    refused: list[str] = []

    def refuse_one(request: Request) -> Result | None:
        if isinstance(request, CubinRequest) and not refused:
            refused.append(request.key)
            return failed(request, Failure(Fault.PARTS, "too large"))
        return None

    monkeypatch.setattr(held_jobs, "plan_of", defective)
    poison, other = farm.run(farm.submit("poison", "a"), refuse_one)
    assert (poison.status, other.status) == (Status.CRASHED, Status.SUCCEEDED)
    assert "parts of nothing" in poison.reason


def test_a_job_whose_planning_ends_each_coordinator_crashes_and_no_other_job_does(farm: Farmyard) -> None:
    ids = farm.submit("poison", "a", "b")
    claims = []
    while (claimed := farm.ledger.claim_next(f"coordinator {len(claims)}", 60, 9)) and ids[0] in claimed:
        claims.append(claimed)
        if farm.ledger.job(ids[0]).claims > MAX_CLAIMS:
            break
        end_leases(farm)  # as if it had been killed
    assert claims == [ids, *[[ids[0]]] * MAX_CLAIMS]
    end_leases(farm)
    found = serve(farm, "c")
    assert [found[name].status for name in "abc"] == [Status.SUCCEEDED] * 3
    assert found["poison"].status is Status.CRASHED
    assert found["poison"].reason.startswith(f"{MAX_CLAIMS} coordinators died while they planned it")


def test_a_job_that_ends_before_it_is_planned_has_no_cubin(farm: Farmyard, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: object) -> NoReturn:
        raise LedgerError("the disk is full")

    [job_id] = farm.submit("a")
    monkeypatch.setattr(Ledger, "record_keys", full)
    with pytest.raises(LedgerError):
        farm.run([job_id])
    assert farm.ledger.job(job_id).reason == "the disk is full; 0 of 4 cubins were done"


def test_claims_are_counted_anew_after_planning_an_interruption_and_a_retry(farm: Farmyard) -> None:
    def interrupt(request: Request) -> None:
        raise KeyboardInterrupt

    [job_id] = farm.submit("a")
    for _ in range(2 * MAX_CLAIMS):
        with pytest.raises(KeyboardInterrupt):
            farm.run([job_id], interrupt)
    assert farm.ledger.job(job_id).claims == 0
    farm.ledger.claim_all([job_id], "me", 60)
    farm.ledger.finish(job_id, Status.CRASHED, "no")
    farm.ledger.retry(JobSet(), "again")
    assert farm.ledger.job(job_id).claims == 0


def test_a_job_of_a_newer_format_waits_for_a_coordinator_that_reads_it(farm: Farmyard) -> None:
    [newer] = farm.submit("newer")
    write(farm, jobs, format=JOB_FORMAT + 1)
    found = serve(farm, "a")
    assert (found["a"].status, found["newer"].status, found["newer"].tries) == (Status.SUCCEEDED, Status.PENDING, 0)
    assert found["newer"].reason == f"waits for a coordinator of format {JOB_FORMAT + 1}"
    assert farm.ledger.claim_all([newer], "me", 60) == []
    farm.ledger.coordinators.register("newer", "node", serves=True, lease_seconds=60)
    assert farm.ledger.job(newer).reason == f"waits for a coordinator of format {JOB_FORMAT + 1}"
    write(farm, coordinators, format=JOB_FORMAT + 1)
    assert farm.ledger.job(newer).reason == ""


def test_a_job_says_that_it_has_no_coordinator_only_while_none_serves(farm: Farmyard) -> None:
    stopped, dead = farm.submit("stopped", "dead")
    farm.ledger.claim_all([stopped], "first", 60)
    farm.ledger.release("first")
    farm.ledger.claim_all([dead], "second", -5)
    assert farm.ledger.job(stopped).reason == NO_COORDINATOR
    assert re.match(r"no coordinator for \d+ s: run farm", farm.ledger.job(dead).reason)
    farm.ledger.coordinators.register("third", "node", serves=True, lease_seconds=60)
    assert farm.ledger.job(stopped).reason == ""
    assert re.fullmatch(r"its coordinator died \d+ s ago: another one takes over", farm.ledger.job(dead).reason)


def test_a_build_that_kills_its_worker_is_given_up_after_the_retries_of_all_coordinators(farm: Farmyard) -> None:
    def die(request: Request) -> Result | None:
        return failed(request, Failure(Fault.CRASH, "its worker died")) if isinstance(request, CubinRequest) else None

    def die_once_and_stop(request: Request) -> Result | None:
        if sum(isinstance(each, CubinRequest) for each in farm.executor.submitted) > 1:
            raise KeyboardInterrupt
        return die(request)

    [job_id] = farm.submit("a", archs=("sm_80",))
    with pytest.raises(KeyboardInterrupt):
        farm.run([job_id], die_once_and_stop, capacity=1)
    first = farm.executor.submitted[-1].key
    [job] = farm.run([job_id], die)
    assert job.status is Status.CRASHED
    assert sum(request.key == first for request in farm.executor.submitted) == farm.settings.max_retries
    farm.ledger.retry(JobSet(), "again")
    [job] = farm.run([job_id])
    assert job.status is Status.SUCCEEDED


def test_a_build_that_kills_its_coordinator_each_time_is_given_up(farm: Farmyard) -> None:
    alive = farm.ledger.coordinators
    [done] = farm.run(farm.submit("a", archs=("sm_80",)))
    keys = [result.cubin_key for result in farm.results(done.id)]
    for name in ("first", "second", "third"):
        alive.register(name, "node", serves=True, lease_seconds=60)
        alive.acquire_keys(name, keys[:1], local=True)
        alive.acquire_keys(name, keys[1:], local=False)  # the death of this coordinator says nothing of a cluster
        end_leases(farm)
    farm.store = type(farm.store)()
    [job] = farm.run(farm.submit("b", archs=("sm_80",)))
    assert job.status is Status.CRASHED
    assert job.reason.endswith("its worker or coordinator died 3 times while it was built")
    assert {request.key for request in farm.executor.submitted} & set(keys) == set(keys[1:])


@pytest.mark.parametrize(
    "poison",
    [
        {"cubin_bytes": float("inf")},
        {"cubin": "no digest"},
        {"launch": [1]},
        {"launch": {"grid": None}},
        {"fmas_kept": {}},
        {"error": 1},
    ],
)
def test_a_record_that_cannot_be_read_is_a_miss_and_its_cubin_is_built_again(
    farm: Farmyard, poison: dict[str, Any]
) -> None:
    [done] = farm.run(farm.submit("a"))
    key = farm.results(done.id)[0].cubin_key
    farm.store.put_record(CUBIN_STAGE, key, {**(farm.store.get_record(CUBIN_STAGE, key) or {}), **poison})
    [job] = farm.run(farm.submit("b"))
    assert (job.status, job.hits) == (Status.SUCCEEDED, 3)
    assert [request.key for request in farm.executor.submitted] == [key]
