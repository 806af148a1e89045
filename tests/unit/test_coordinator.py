"""The coordinator on a real ledger and store; only the tools are played, by a scripted executor."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farm.errors import NotFoundError, UnreachableError
from farm.jobs.model import NO_COORDINATOR, BuildResult, Job, JobSet, Outcome, Status
from farm.ledger import Ledger
from farm.scheduler.coordinator import POLL_SECONDS
from farm.scheduler.progress import Progress
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Result, TemplateRequest, TemplateResult, failed
from tests.samples import SMALLER
from tests.unit.farmyard import Farmyard, PlayedClock, PlayedExecutor


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farmyard]:
    farm = Farmyard(tmp_path)
    yield farm
    farm.ledger.close()


def outcomes(results: Sequence[BuildResult]) -> set[Outcome]:
    return {result.outcome for result in results}


def test_a_job_succeeds_when_all_its_cubins_are_there(farm: Farmyard) -> None:
    [job] = farm.run(farm.submit("a"))
    assert (job.status, job.done, job.total, job.hits) == (Status.SUCCEEDED, 4, 4, 0)
    assert [(result.outcome, result.registers, result.template_seconds) for result in farm.results(job.id)] == [
        (Outcome.BUILT, 32, 1.5)
    ] * 4


def test_the_ledger_keeps_what_went_into_each_key(farm: Farmyard) -> None:
    [job] = farm.run(farm.submit("a"))
    for result in farm.results(job.id):
        assert (farm.ledger.key_fields(result.cubin_key) or {})["arch"] == result.arch
        assert (farm.ledger.key_fields(result.template_key) or {})["compiler"] == "13.0.88"


def test_a_job_whose_cubins_are_all_known_uses_no_worker(farm: Farmyard) -> None:
    farm.run(farm.submit("a"))
    [job] = farm.run(farm.submit("b"), capacity=0)  # nothing can be submitted
    assert (job.status, job.hits) == (Status.SUCCEEDED, 4)
    assert farm.executor.submitted == []


def test_recache_builds_what_is_known_too(farm: Farmyard) -> None:
    farm.run(farm.submit("a"))
    farm.settings = replace(farm.settings, recache=True)
    [job] = farm.run(farm.submit("b"))
    assert (job.hits, len(farm.executor.submitted)) == (0, 2 + 4)


def test_a_cubin_whose_blob_is_lost_is_built_again_and_only_that_one(farm: Farmyard) -> None:
    [job] = farm.run(farm.submit("a"))
    lost = farm.results(job.id)[0]
    del farm.store._blobs[str(lost.cubin)]
    [job] = farm.run(farm.submit("b"))
    assert (job.status, job.hits) == (Status.SUCCEEDED, 3)
    assert [request.key for request in farm.executor.submitted] == [lost.cubin_key]


def test_a_template_that_is_known_is_not_made_again_for_another_architecture(farm: Farmyard) -> None:
    farm.run(farm.submit("a", archs=("sm_80",)))
    farm.run(farm.submit("b", archs=("sm_90",)))
    assert all(isinstance(request, CubinRequest) for request in farm.executor.submitted)


def test_jobs_that_run_together_build_what_they_share_once(farm: Farmyard) -> None:
    first, second = farm.run(farm.submit("a", "b"))
    assert len(farm.executor.submitted) == 2 + 4
    assert outcomes(farm.results(first.id)) == {Outcome.BUILT}
    assert outcomes(farm.results(second.id)) == {Outcome.HIT}
    assert {result.cubin for result in farm.results(first.id)} == {result.cubin for result in farm.results(second.id)}


def test_a_later_job_that_finds_a_template_takes_nothing_from_what_is_told_of_its_run(farm: Farmyard) -> None:
    [first] = farm.submit("a")
    late: list[str] = []

    def play(request: Request) -> None:
        if isinstance(request, CubinRequest) and not late:
            late.extend(farm.submit("b", parts=2))
            time.sleep(POLL_SECONDS)  # until new jobs are asked for again

    farm.coordinator(PlayedExecutor(farm.store, play, capacity=1)).serve(drain=True)
    assert {result.template_seconds for result in farm.results(first)} == {1.5}
    assert {result.template_seconds for result in farm.results(late[0])} == {0.0}
    found = farm.ledger.statistics.read().template
    assert (found.misses, found.hits, found.spent_seconds) == (2, 2, 3.0)


def test_cubins_do_not_wait_for_templates_that_they_do_not_need(farm: Farmyard) -> None:
    order: list[str] = []

    def play(request: Request) -> None:
        order.append("template" if isinstance(request, TemplateRequest) else request.template.key)

    farm.submit("a")

    class Slow(PlayedExecutor):
        """Executor whose second template ends after everything else."""

        def wait(self, timeout_seconds: float) -> list[Result]:
            if len(self._waiting) > 1 and isinstance(self._waiting[0], TemplateRequest) and order:
                self._waiting.rotate(-1)
            return super().wait(timeout_seconds)

    [job] = farm.coordinator(Slow(farm.store, play)).run([farm.ledger.job("latest").id])
    assert job.status is Status.SUCCEEDED
    assert order.index("template", 1) == 3
    assert order[1] == order[2]


def test_a_template_that_fails_fails_the_layers_that_need_it_and_no_other(farm: Farmyard) -> None:
    def play(request: Request) -> Result | None:
        broken = isinstance(request, TemplateRequest) and request.spec == SMALLER
        return failed(request, Failure(Fault.INPUT, "nvcc ran into its time limit of 600 s")) if broken else None

    [job] = farm.run(farm.submit("a"), play)
    assert job.status is Status.FAILED
    assert job.reason == (
        "2 of 4 cubins failed: conv2 sm_80: its template failed: nvcc ran into its time limit of 600 s"
    )
    layer_of = {build.id: build.layer for build in farm.ledger.builds(job.id)}
    assert {(layer_of[result.build], result.outcome) for result in farm.results(job.id)} == {
        ("conv1", Outcome.BUILT),
        ("conv2", Outcome.FAILED),
    }


def test_a_fault_of_the_input_is_final_and_names_layer_architecture_and_command(farm: Farmyard) -> None:
    def play(request: Request) -> Result | None:
        if isinstance(request, TemplateRequest) or request.arch != "sm_90" or request.template.spec == SMALLER:
            return None
        return failed(request, Failure(Fault.INPUT, "ptxas failed: no", "ptxas kernel.ptx", "line 7: no"))

    [job] = farm.run(farm.submit("a"), play)
    assert (job.status, job.reason) == (Status.FAILED, "1 of 4 cubins failed: conv1 sm_90: ptxas failed: no")
    [bad] = [result for result in farm.results(job.id) if result.outcome is Outcome.FAILED]
    assert (bad.error, bad.command) == ("ptxas failed: no", "ptxas kernel.ptx")
    assert len(farm.executor.submitted) == 2 + 4
    [event] = [event for event in farm.ledger.events(job.id) if "conv1 sm_90" in event.text and "\n" in event.text]
    assert event.level == "error"
    assert "line 7: no" in event.text


def test_a_worker_that_dies_once_costs_a_retry(farm: Farmyard) -> None:
    died: set[str] = set()

    def play(request: Request) -> Result | None:
        if request.key in died:
            return None
        died.add(request.key)
        return failed(request, Failure(Fault.CRASH, "its worker died"))

    [job] = farm.run(farm.submit("a"), play)
    assert (job.status, job.done) == (Status.SUCCEEDED, 4)
    assert len(farm.executor.submitted) == 2 * (2 + 4)
    warnings = [event.text for event in farm.ledger.events(job.id) if event.level == "warning"]
    assert len(warnings) == 2 + 4
    assert "conv2 sm_90: retrying: its worker died" in warnings


def test_a_worker_that_dies_every_time_crashes_the_job_after_the_retries(farm: Farmyard) -> None:
    def play(request: Request) -> Result | None:
        return failed(request, Failure(Fault.CRASH, "its worker died")) if isinstance(request, CubinRequest) else None

    [job] = farm.run(farm.submit("a", archs=("sm_80",)), play)
    assert job.status is Status.CRASHED
    assert "2 of 2 cubins failed" in job.reason
    assert len(farm.executor.submitted) == 2 + 2 * (1 + farm.settings.max_retries)


def test_a_failure_around_the_build_is_not_the_inputs_fault(farm: Farmyard) -> None:
    [job] = farm.run(farm.submit("a"), lambda request: failed(request, Failure(Fault.FARM, "the store is full")))
    assert job.status is Status.CRASHED
    assert "the store is full" in job.reason


def test_an_interruption_puts_the_job_back_and_keeps_what_was_built(farm: Farmyard) -> None:
    built: list[str] = []

    def play(request: Request) -> None:
        if len(built) == 4:
            raise KeyboardInterrupt
        built.append(request.key)

    ids = farm.submit("a")
    with pytest.raises(KeyboardInterrupt):
        farm.run(ids, play)
    job = farm.ledger.job(ids[0])
    assert (job.status, job.reason, job.done) == (Status.PENDING, NO_COORDINATOR, 2)
    assert farm.executor.cancelled

    [job] = farm.run(ids)
    assert (job.status, job.done, job.hits, job.tries) == (Status.SUCCEEDED, 4, 2, 2)


def test_the_parts_of_a_layer_come_out_as_cubins_of_their_own(farm: Farmyard) -> None:
    [job] = farm.run(farm.submit("a", parts=3))
    assert (job.status, job.done, job.total, job.hits) == (Status.SUCCEEDED, 12, 12, 0)
    results = farm.results(job.id)
    assert len({result.cubin for result in results}) == 12
    for build in farm.ledger.builds(job.id):
        mine = [(result.arch, result.part) for result in results if result.build == build.id]
        assert mine == [(arch, part) for arch in ("sm_80", "sm_90") for part in range(3)]
    assert sum(isinstance(request, TemplateRequest) for request in farm.executor.submitted) == 2
    texts = [event.text for event in farm.ledger.events(job.id)]
    assert sum(text.startswith("conv2 sm_90 part 3 of 3: built") for text in texts) == 1


def test_hits_are_counted_for_each_part_and_a_second_run_makes_nothing(farm: Farmyard) -> None:
    farm.run(farm.submit("a", parts=2))
    [job] = farm.run(farm.submit("b", parts=2), capacity=0)  # nothing can be submitted
    assert (job.status, job.done, job.hits) == (Status.SUCCEEDED, 8, 8)
    [other] = farm.run(farm.submit("c", parts=3))  # Part(0, 1) and Part(1, 2) are known, Part(2, 3) is new
    assert (other.status, other.done, other.hits) == (Status.SUCCEEDED, 12, 8)


def test_one_part_that_fails_fails_the_job_and_names_itself(farm: Farmyard) -> None:
    def play(request: Request) -> Result | None:
        if isinstance(request, TemplateRequest) or request.template.spec == SMALLER:
            return None
        bad = request.arch == "sm_90" and request.part.first == 1
        return failed(request, Failure(Fault.INPUT, "ptxas ran out of memory", "ptxas kernel.ptx")) if bad else None

    [job] = farm.run(farm.submit("a", parts=2), play)
    assert job.status is Status.FAILED
    assert job.reason == "1 of 8 cubins failed: conv1 sm_90 part 2 of 2: ptxas ran out of memory"
    [bad] = [result for result in farm.results(job.id) if result.outcome is Outcome.FAILED]
    assert (bad.arch, bad.part, bad.command) == ("sm_90", 1, "ptxas kernel.ptx")


def test_a_job_interrupted_between_the_parts_of_a_layer_builds_only_the_missing_ones(farm: Farmyard) -> None:
    def play(request: Request) -> None:
        if sum(isinstance(each, CubinRequest) for each in farm.executor.submitted) > 4:
            raise KeyboardInterrupt

    ids = farm.submit("a", parts=2)
    with pytest.raises(KeyboardInterrupt):
        farm.run(ids, play, capacity=1)
    done = {result.cubin_key for result in farm.results(ids[0])}
    assert len(done) == 4

    [job] = farm.run(ids)
    assert (job.status, job.done, job.hits) == (Status.SUCCEEDED, 8, 4)
    again = [request.key for request in farm.executor.submitted]
    assert len(again) == 4
    assert done.isdisjoint(again)


def test_an_executor_that_cannot_start_crashes_the_job_in_words(farm: Farmyard) -> None:
    def play(request: Request) -> None:
        raise UnreachableError("Ray on this machine cannot be reached")

    ids = farm.submit("a")
    with pytest.raises(UnreachableError):
        farm.run(ids, play)
    job = farm.ledger.job(ids[0])
    assert job.status is Status.CRASHED
    assert job.reason == "Ray on this machine cannot be reached; 0 of 4 cubins were done"


def test_a_job_that_takes_too_long_ends_with_what_it_has(farm: Farmyard) -> None:
    farm.settings, clock = replace(farm.settings, job_timeout_seconds=30), PlayedClock()

    def play(request: Request) -> None:
        if isinstance(request, CubinRequest):
            clock.sleep(31)

    [job] = farm.run(farm.submit("a"), play, clock=clock)
    assert job.status is Status.FAILED
    assert "FARM_JOB_TIMEOUT" in job.reason
    assert job.done == 1
    assert farm.executor.dropped


def test_a_job_that_is_cancelled_as_its_time_is_up_ends_no_other_job(farm: Farmyard) -> None:
    farm.settings, clock = replace(farm.settings, job_timeout_seconds=30), PlayedClock()
    late, other = farm.submit("late", "other")
    passing = iter((0.0, 29.9, 0.3))  # begins; its results are written; the next write is not due, but its time is up

    def play(request: Request) -> None:
        clock.sleep(seconds := next(passing, 0.0))
        if seconds == 0.3:
            farm.ledger.cancel(JobSet(ids=(late,)), "no longer wanted")

    farm.coordinator(PlayedExecutor(farm.store, play), clock=clock).serve(drain=True)
    assert [farm.ledger.job(each).status for each in (late, other)] == [Status.CANCELLED, Status.SUCCEEDED]


def test_a_job_that_somebody_else_ends_first_is_lost_and_not_done(
    farm: Farmyard, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, Status]] = []

    class Watch(Progress):
        def job_done(self, job: Job) -> None:
            told.append(("done", job.status))

        def job_lost(self, job: Job) -> None:
            told.append(("lost", job.status))

    finish = Ledger.finish

    def late(ledger: Ledger, job_id: str, *given: Any, **named: Any) -> bool:
        ledger.cancel(JobSet(ids=(job_id,)), "no longer wanted")
        return finish(ledger, job_id, *given, **named)

    ids = farm.submit("a")
    monkeypatch.setattr(Ledger, "finish", late)
    farm.coordinator(PlayedExecutor(farm.store), Watch()).run(ids)
    assert told == [("lost", Status.CANCELLED)]


def test_an_unknown_job_is_an_error_before_another_one_runs(farm: Farmyard) -> None:
    [known] = farm.submit("a")
    with pytest.raises(NotFoundError, match=r"^no such job: 'other'\. farm status lists jobs$"):
        farm.run([known, "other"])
    assert farm.ledger.job(known).status is Status.PENDING


def test_progress_hears_of_every_step(farm: Farmyard) -> None:
    heard: list[str] = []

    class Watch(Progress):
        def planned(self, jobs: Sequence[Job], builds: object, plan: object) -> None:
            heard.append("planned")

        def submitted(self, request: Request) -> None:
            heard.append("submitted")

        def template_done(self, result: TemplateResult) -> None:
            heard.append("template")

        def cubin_done(self, job: Job, build: object, result: BuildResult) -> None:
            heard.append("cubin")

        def job_done(self, job: Job) -> None:
            heard.append(job.status)

    ids = farm.submit("a")
    farm.coordinator(PlayedExecutor(farm.store), Watch()).run(ids)
    assert (heard[0], heard[-1]) == ("planned", Status.SUCCEEDED)
    assert [heard.count(what) for what in ("submitted", "template", "cubin")] == [6, 2, 4]
