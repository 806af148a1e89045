"""What every ledger does, on a real SQLite file and on a real PostgreSQL server."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier

import pytest
from sqlalchemy import event

from codegen.spec import AddResidual, Clip, Conv2d, ConvTranspose2d, LayerSpec, LeakyRelu, Linear, SkippedLayer
from codegen.tiling import Part, Tiling
from farm.errors import LedgerError, NotFoundError, UsageError
from farm.jobs import (
    ALLOWED_MOVES,
    Build,
    BuildOptions,
    BuildResult,
    NewJob,
    NewSubmission,
    Outcome,
    Status,
)
from farm.ledger import Ledger
from tests.services.conftest import Database

SPEC = Conv2d(3, 8, 9, 4, 3, 3, stride=(1, 2), padding=(1, 0, 1, 2))
OPTIONS = BuildOptions(archs=("sm_80", "sm_90"))
WHOLE = (Part(0, 1),)
HALVES = (Part(0, 2), Part(2, 4))


def new_job(
    job_id: str = "aaaa1111",
    request: str = "r1",
    layers: int = 2,
    options: BuildOptions = OPTIONS,
    parts: tuple[Part, ...] = WHOLE,
) -> NewJob:
    tiling = Tiling(8, 8, 1, 4, 3, 2)
    builds = tuple(
        Build(0, job_id, i, f"conv{i}", f"in{i}", f"out{i}", SPEC, tiling, "ab" * 32, 10 + i, parts)
        for i in range(layers)
    )
    skipped = (SkippedLayer("pool", "MaxPool", "no weights"),)
    return NewJob(job_id, "net", "/models/net.onnx", "cd" * 32, request.ljust(64, "."), options, builds, skipped)


def submit(ledger: Ledger, *jobs: NewJob) -> list[str]:
    return [job.id for job in ledger.record_submission(NewSubmission(f"s-{jobs[0].id}", "ada", jobs))]


def result(build: int, arch: str = "sm_80", outcome: Outcome = Outcome.BUILT, part: int = 0) -> BuildResult:
    return BuildResult(
        build,
        arch,
        part,
        outcome,
        "11" * 32,
        "22" * 32,
        "33" * 32,
        4096,
        "44" * 32,
        5,
        6,
        40,
        8,
        0.5,
        0.01,
        0.2,
        "e",
        "c",
    )


def test_a_job_comes_back_as_it_was_submitted(ledger: Ledger) -> None:
    before = datetime.now(UTC)
    submit(ledger, new_job())
    job = ledger.job("aaaa1111")
    assert (job.name, job.model, job.submitter, job.options) == ("net", "/models/net.onnx", "ada", OPTIONS)
    assert (job.status, job.done, job.total, job.hits, job.tries) == (Status.PENDING, 0, 4, 0, 0)
    assert job.skipped == (SkippedLayer("pool", "MaxPool", "no weights"),)
    assert abs((job.submitted_at - before).total_seconds()) < 5
    builds = ledger.builds(job.id)
    assert [replace(build, id=0) for build in builds] == list(new_job().builds)
    assert len({build.id for build in builds}) == 2


@pytest.mark.parametrize(
    "spec",
    [
        Conv2d(8, 1, 9, 4, 1, 3, dilation=(1, 2), groups=2, epilogue=(LeakyRelu(0.1),), data_type="float16"),
        ConvTranspose2d(8, 8, 8, 4, 3, 3, stride=(2, 2), output_padding=(1, 0), epilogue=(Clip(0.0, 6.0),)),
        Linear(12, 7, epilogue=(AddResidual(), Clip(low=0.0)), data_type="bfloat16"),
    ],
)
def test_a_layer_comes_back_with_all_that_it_is_launched_by(ledger: Ledger, spec: LayerSpec) -> None:
    [plain] = new_job(layers=1).builds
    submitted = replace(
        plain,
        spec=spec,
        parts=HALVES,
        residual="skip",
        rows=197,
        folded=("BatchNormalization bn1", "Relu relu1"),
    )
    submit(ledger, replace(new_job(), builds=(submitted,)))
    [build] = ledger.builds("aaaa1111")
    assert replace(build, id=0) == submitted


def test_every_part_counts_as_a_cubin_and_has_a_result_of_its_own(ledger: Ledger) -> None:
    submit(ledger, new_job(parts=HALVES))
    assert ledger.job("aaaa1111").total == 2 * 2 * 2
    build = ledger.builds("aaaa1111")[0].id
    sent = [result(build, part=0), result(build, part=1, outcome=Outcome.HIT)]
    ledger.record_results(sent)
    ledger.record_results([result(build, part=0)])
    assert ledger.results("aaaa1111") == sent
    assert (ledger.job("aaaa1111").done, ledger.job("aaaa1111").hits) == (2, 1)


def test_results_come_back_and_are_counted(ledger: Ledger) -> None:
    submit(ledger, new_job())
    first, second = (build.id for build in ledger.builds("aaaa1111"))
    sent = [result(first), result(first, "sm_90", Outcome.HIT), result(second, "sm_80", Outcome.FAILED)]
    ledger.record_results(sent)
    assert ledger.results("aaaa1111") == sent
    assert (ledger.job("aaaa1111").done, ledger.job("aaaa1111").hits) == (3, 1)


def test_a_result_of_a_later_try_replaces_the_earlier(ledger: Ledger) -> None:
    submit(ledger, new_job())
    build = ledger.builds("aaaa1111")[0].id
    ledger.record_results([result(build, outcome=Outcome.FAILED)])
    ledger.record_results([result(build, outcome=Outcome.HIT)])
    assert [r.outcome for r in ledger.results("aaaa1111")] == [Outcome.HIT]
    assert (ledger.job("aaaa1111").done, ledger.job("aaaa1111").hits) == (1, 1)
    ledger.forget_results("aaaa1111")
    assert ledger.results("aaaa1111") == []
    assert ledger.job("aaaa1111").done == 0


def test_of_many_coordinators_one_gets_a_job(database: Database) -> None:
    ledgers = [database.open() for _ in range(8)]
    submit(ledgers[0], *[new_job(f"{i:08x}", f"r{i}") for i in range(10)])
    barrier = threading.Barrier(8)

    def claim_all(number: int) -> list[bool]:
        barrier.wait()
        return [ledgers[number].claim(f"{i:08x}", f"c{number}", 60) for i in range(10)]

    with ThreadPoolExecutor(8) as pool:
        wins = list(pool.map(claim_all, range(8)))
    assert [sum(column) for column in zip(*wins, strict=True)] == [1] * 10
    assert {job.tries for job in ledgers[0].jobs()} == {1}
    for ledger in ledgers:
        ledger.close()


def claim_one_by_one(database: Database, name: str, job_ids: list[str], together: bool) -> list[str]:
    """What one process gets, which begins when the other does."""
    ledger = database.open()
    BARRIER[0].wait()
    try:
        if together:
            slices = [job_ids[i : i + 7] for i in range(0, len(job_ids), 7)]
            return [job_id for some in slices for job_id in ledger.claim_all(some, name, 60)]
        return [job_id for job_id in job_ids if ledger.claim(job_id, name, 60)]
    finally:
        ledger.close()


BARRIER: list[Barrier] = []


def will_meet(barrier: Barrier) -> None:
    BARRIER.append(barrier)


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
    ledger.claim("b", "alive", 60)
    ledger.claim("c", "dead", 0)
    time.sleep(0.05)
    assert ledger.claim_all(["d", "c", "b", "a", "missing"], "me", 60) == ["a", "c", "d"]
    assert ledger.claim_all(["a"], "me", 60) == []
    assert {job.id: job.tries for job in ledger.jobs()} == {"a": 1, "b": 1, "c": 2, "d": 1}


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


def test_text_of_a_tool_may_hold_any_character(ledger: Ledger) -> None:
    submit(ledger, new_job())
    ledger.add_event("aaaa1111", "error", "a\0b \N{SNOWMAN} \N{GRINNING FACE} 100%")
    [event] = ledger.events("aaaa1111")
    assert event.text == "a\N{REPLACEMENT CHARACTER}b \N{SNOWMAN} \N{GRINNING FACE} 100%"


def test_a_coordinator_cannot_extend_what_another_took_over(ledger: Ledger) -> None:
    submit(ledger, new_job())
    ledger.claim("aaaa1111", "slow", 0)
    time.sleep(0.05)
    assert ledger.claim("aaaa1111", "next", 0)
    ledger.extend_lease("slow", 60)
    time.sleep(0.05)
    assert ledger.claim("aaaa1111", "third", 60)


def test_a_job_whose_lease_ended_can_be_taken_over_and_says_so(ledger: Ledger) -> None:
    submit(ledger, new_job())
    assert ledger.claim("aaaa1111", "first", 0.2)
    assert not ledger.claim("aaaa1111", "second", 60)
    time.sleep(0.4)
    assert "no coordinator for" in ledger.job("aaaa1111").reason
    assert ledger.claim("aaaa1111", "second", 60)
    job = ledger.job("aaaa1111")
    assert (job.tries, job.reason, job.status) == (2, "", Status.RUNNING)


def test_a_heartbeat_keeps_the_lease(ledger: Ledger) -> None:
    submit(ledger, new_job())
    ledger.claim("aaaa1111", "first", 0.3)
    ledger.extend_lease("first", 60)
    time.sleep(0.5)
    assert not ledger.claim("aaaa1111", "second", 60)


def test_the_same_request_takes_up_the_unfinished_job(ledger: Ledger) -> None:
    assert submit(ledger, new_job("aaaa1111", "same")) == ["aaaa1111"]
    assert submit(ledger, new_job("bbbb2222", "same"), new_job("cccc3333", "other")) == ["aaaa1111", "cccc3333"]
    ledger.claim("aaaa1111", "alive", 60)
    assert submit(ledger, new_job("dddd4444", "same")) == ["dddd4444"]
    for job_id in ("dddd4444", "aaaa1111"):
        ledger.claim(job_id, "alive", 60)
        ledger.finish(job_id, Status.SUCCEEDED, "")
    assert submit(ledger, new_job("eeee5555", "same")) == ["eeee5555"]


def test_an_unfinished_job_with_an_ended_lease_is_taken_up_by_the_same_request(ledger: Ledger) -> None:
    submit(ledger, new_job("aaaa1111", "same"))
    ledger.claim("aaaa1111", "dead", 0)
    time.sleep(0.05)
    assert submit(ledger, new_job("bbbb2222", "same")) == ["aaaa1111"]


def test_one_request_given_twice_in_a_submission_is_one_job(ledger: Ledger) -> None:
    assert submit(ledger, new_job("aaaa1111", "same"), new_job("bbbb2222", "same")) == ["aaaa1111", "aaaa1111"]
    assert [job.id for job in ledger.jobs()] == ["aaaa1111"]


def test_a_thousand_jobs_go_in_together_and_a_status_is_quick_with_a_hundred_thousand_builds(ledger: Ledger) -> None:
    jobs = [new_job(f"{i:012x}", f"r{i}", layers=100) for i in range(1000)]
    assert len(submit(ledger, *jobs)) == 1000
    start = time.monotonic()
    assert ledger.counts() == {Status.PENDING: 1000}
    assert len(ledger.jobs(limit=20)) == 20
    assert time.monotonic() - start < 0.5
    assert [build.position for build in ledger.builds(f"{999:012x}")] == list(range(100))


def test_a_submission_of_many_jobs_takes_as_many_statements_as_one_of_few(ledger: Ledger) -> None:
    statements: list[str] = []

    def count(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    event.listen(ledger._engine, "before_cursor_execute", count)
    counted = []
    for jobs in ([new_job("few", "few")], [new_job(f"{i:08x}", f"r{i}", layers=5) for i in range(300)]):
        statements.clear()
        submit(ledger, *jobs)
        counted.append(len(statements))
    assert counted[0] == counted[1]


@pytest.mark.parametrize("target", list(Status))
@pytest.mark.parametrize("source", list(Status))
def test_a_job_moves_only_as_allowed(ledger: Ledger, source: Status, target: Status) -> None:
    submit(ledger, new_job())
    if source is not Status.PENDING:
        ledger.claim("aaaa1111", "c", 60)
    if source.final:
        ledger.finish("aaaa1111", source, "why")
    if target in ALLOWED_MOVES[source]:
        ledger.finish("aaaa1111", target, "because")
        job = ledger.job("aaaa1111")
        assert (job.status, job.reason, job.finished_at is not None) == (target, "because", target.final)
    else:
        with pytest.raises(LedgerError, match=f"is {source} and cannot become {target}"):
            ledger.finish("aaaa1111", target, "because")


def test_a_released_job_is_pending_with_the_reason(ledger: Ledger) -> None:
    submit(ledger, new_job())
    ledger.claim("aaaa1111", "c", 60)
    ledger.set_stage("aaaa1111", "template")
    assert ledger.job("aaaa1111").stage == "template"
    ledger.release("somebody else", "no")
    assert ledger.job("aaaa1111").status is Status.RUNNING
    ledger.release("c", "no coordinator")
    job = ledger.job("aaaa1111")
    assert (job.status, job.reason, job.stage, job.started_at) == (Status.PENDING, "no coordinator", "", None)
    assert ledger.claim("aaaa1111", "d", 60)


def test_jobs_are_found_by_prefix_or_latest(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError, match="no jobs yet"):
        ledger.job("latest")
    submit(ledger, new_job("aaaa1111", "a"), new_job("aaaa2222", "b"), new_job("bbbb", "c"))
    assert ledger.job("b").id == "bbbb"
    assert ledger.job("latest").id == "bbbb"
    with pytest.raises(UsageError, match="aaaa2222, aaaa1111"):
        ledger.job("aaaa")
    for missing in ("x", "%", "_aaa"):
        with pytest.raises(NotFoundError, match="farm status"):
            ledger.job(missing)


def test_jobs_are_filtered_newest_first(ledger: Ledger) -> None:
    submit(ledger, new_job("a", "a"), new_job("b", "b", options=BuildOptions(("sm_90a",))), new_job("c", "c"))
    ledger.claim("c", "x", 60)
    assert [job.id for job in ledger.jobs()] == ["c", "b", "a"]
    assert [job.id for job in ledger.jobs(limit=2)] == ["c", "b"]
    assert [job.id for job in ledger.jobs(states=[Status.PENDING])] == ["b", "a"]
    assert [job.id for job in ledger.jobs(arch="sm_90")] == ["c", "a"]
    assert [job.id for job in ledger.jobs(arch="sm_90a")] == ["b"]
    assert ledger.jobs(model="other") == []
    assert len(ledger.jobs(model="NET.onnx")) == 3
    assert len(ledger.jobs(name="Net")) == 3
    assert ledger.counts() == {Status.PENDING: 2, Status.RUNNING: 1}


def test_key_fields_are_kept_once(ledger: Ledger) -> None:
    ledger.record_keys("template", {"aa" * 32: {"arch": "compute_80"}})
    ledger.record_keys("template", {"aa" * 32: {"arch": "changed"}, "bb" * 32: {}})
    assert ledger.key_fields("aa" * 32) == {"arch": "compute_80"}
    assert ledger.key_fields("bb" * 32) == {}
    assert ledger.key_fields("cc" * 32) is None


def test_events_follow_one_another(ledger: Ledger) -> None:
    submit(ledger, new_job())
    ledger.add_event("aaaa1111", "info", "one")
    ledger.add_event("aaaa1111", "error", "two")
    first, second = ledger.events("aaaa1111")
    assert (first.text, second.text, second.level) == ("one", "two", "error")
    assert ledger.events("aaaa1111", after_id=first.id) == [second]


def test_a_failed_submission_leaves_nothing(ledger: Ledger) -> None:
    submit(ledger, new_job("aaaa1111", "a"))
    with pytest.raises(LedgerError, match=r"(?i)unique"):
        ledger.record_submission(NewSubmission("s-2", "ada", (new_job("bbbb", "b"), new_job("aaaa1111", "c"))))
    assert [job.id for job in ledger.jobs()] == ["aaaa1111"]
