"""Behaviour of every ledger, on a real SQLite file and on a real PostgreSQL server."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import event

from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, ConvTranspose2d, LayerSpec, LeakyRelu, Linear, SkippedLayer
from farm.errors import LedgerError, NotFoundError, UsageError
from farm.jobs.model import ALLOWED_MOVES, BuildOptions, NewSubmission, Outcome, Status
from farm.ledger import Ledger, TemplateRun
from tests.services.ledger_rows import HALVES, OPTIONS, new_job, result, submit


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
        gate="gates",
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


def test_what_was_made_for_a_submission_is_told_with_its_time_and_summed_by_job(ledger: Ledger) -> None:
    [job] = submit(ledger, new_job())
    [other] = submit(ledger, new_job("bbbb2222", "r2"))
    first, second = (build.id for build in ledger.builds(job))
    ledger.record_results([result(ledger.builds(other)[0].id)])
    ledger.statistics.record_runs([TemplateRun("run", "11" * 32, other, 0.5)])
    ledger.record_results([result(first), result(second, "sm_90", Outcome.HIT)])

    runs = ledger.statistics.timeline(ledger.job(job).submission)
    assert {(run.job, run.is_template, run.outcome) for run in runs} == {
        (job, False, Outcome.BUILT),
        (job, False, Outcome.HIT),
    }
    assert all(run.seconds == pytest.approx(0.21) for run in runs)
    assert all(abs((run.ended_at - datetime.now(UTC)).total_seconds()) < 60 for run in runs)
    template, *_ = (run for run in ledger.statistics.timeline(ledger.job(other).submission) if run.is_template)
    assert (template.job, template.seconds) == (other, 0.5)

    ours, theirs = ledger.statistics.of_job(job), ledger.statistics.of_job(other)
    assert (ours.cubin.hits, ours.cubin.misses, theirs.cubin.misses) == (1, 1, 1)
    assert (ours.template.hits, ours.template.saved_seconds) == (1, 0.5)
    assert (theirs.template.misses, theirs.template.spent_seconds) == (1, 0.5)


def test_results_come_back_and_are_counted(ledger: Ledger) -> None:
    submit(ledger, new_job())
    first, second = (build.id for build in ledger.builds("aaaa1111"))
    sent = [result(first), result(first, "sm_90", Outcome.HIT), result(second, "sm_80", Outcome.FAILED)]
    ledger.record_results(sent)
    assert ledger.results("aaaa1111") == sent
    assert (ledger.job("aaaa1111").done, ledger.job("aaaa1111").hits) == (2, 1)  # what failed is not done


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


def test_text_of_a_tool_may_hold_any_character(ledger: Ledger) -> None:
    submit(ledger, new_job())
    ledger.add_event("aaaa1111", "error", "a\0b \N{SNOWMAN} \N{GRINNING FACE} 100% \udcff")
    [event] = ledger.events("aaaa1111")
    assert event.text == "a\N{REPLACEMENT CHARACTER}b \N{SNOWMAN} \N{GRINNING FACE} 100% \N{REPLACEMENT CHARACTER}"


def test_a_coordinator_cannot_extend_what_another_took_over(ledger: Ledger) -> None:
    submit(ledger, new_job())
    ledger.claim_all(["aaaa1111"], "slow", 0)
    time.sleep(0.05)
    assert ledger.claim_all(["aaaa1111"], "next", 0)
    ledger.extend_lease("slow", 60)
    time.sleep(0.05)
    assert ledger.claim_all(["aaaa1111"], "third", 60)


def test_a_job_whose_lease_ended_can_be_taken_over_and_says_so(ledger: Ledger) -> None:
    submit(ledger, new_job())
    assert ledger.claim_all(["aaaa1111"], "first", 0.2)
    assert not ledger.claim_all(["aaaa1111"], "second", 60)
    time.sleep(0.4)
    assert "no coordinator for" in ledger.job("aaaa1111").reason
    assert ledger.claim_all(["aaaa1111"], "second", 60)
    job = ledger.job("aaaa1111")
    assert (job.tries, job.reason, job.status) == (2, "", Status.RUNNING)


def test_a_heartbeat_keeps_the_lease(ledger: Ledger) -> None:
    submit(ledger, new_job())
    ledger.claim_all(["aaaa1111"], "first", 0.3)
    ledger.extend_lease("first", 60)
    time.sleep(0.5)
    assert not ledger.claim_all(["aaaa1111"], "second", 60)


def test_the_same_request_takes_up_the_unfinished_job(ledger: Ledger) -> None:
    assert submit(ledger, new_job("aaaa1111", "same")) == ["aaaa1111"]
    assert submit(ledger, new_job("bbbb2222", "same"), new_job("cccc3333", "other")) == ["aaaa1111", "cccc3333"]
    ledger.claim_all(["aaaa1111"], "alive", 60)
    assert submit(ledger, new_job("dddd4444", "same")) == ["dddd4444"]
    for job_id in ("dddd4444", "aaaa1111"):
        ledger.claim_all([job_id], "alive", 60)
        ledger.finish(job_id, Status.SUCCEEDED, "")
    assert submit(ledger, new_job("eeee5555", "same")) == ["eeee5555"]


def test_an_unfinished_job_with_an_ended_lease_is_taken_up_by_the_same_request(ledger: Ledger) -> None:
    submit(ledger, new_job("aaaa1111", "same"))
    ledger.claim_all(["aaaa1111"], "dead", 0)
    time.sleep(0.05)
    assert submit(ledger, new_job("bbbb2222", "same")) == ["aaaa1111"]


def test_a_loop_that_waits_for_jobs_reads_only_their_states(ledger: Ledger) -> None:
    submit(ledger, *(new_job(f"{i:04}0000", f"r{i}") for i in range(4)))
    ledger.claim_all(["00010000"], "alive", 60)
    for job_id, status in (("00020000", Status.CANCELLED), ("00030000", Status.FAILED)):
        ledger.claim_all([job_id], "alive", 60)
        ledger.finish(job_id, status, "")
    statements: list[str] = []
    engine = ledger._database.engine
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    asked = ["00000000", "00010000", "00020000", "00030000", "unknown"]
    assert ledger.unfinished(asked) == {"00000000", "00010000"}
    [statement] = [each for each in statements if "SELECT" in each]
    assert re.search(r"SELECT (jobs\.)?id\s+FROM jobs\s+WHERE", statement), statement


def test_one_request_given_twice_in_a_submission_is_one_job(ledger: Ledger) -> None:
    assert submit(ledger, new_job("aaaa1111", "same"), new_job("bbbb2222", "same")) == ["aaaa1111", "aaaa1111"]
    assert [job.id for job in ledger.jobs()] == ["aaaa1111"]


@pytest.mark.slow
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

    event.listen(ledger._database.engine, "before_cursor_execute", count)
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
        ledger.claim_all(["aaaa1111"], "c", 60)
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
    ledger.claim_all(["aaaa1111"], "c", 60)
    ledger.running.set_stage(["aaaa1111"], "template", holder="c")
    assert ledger.job("aaaa1111").stage == "template"
    ledger.release("somebody else", "no")
    assert ledger.job("aaaa1111").status is Status.RUNNING
    ledger.release("c", "no coordinator")
    job = ledger.job("aaaa1111")
    assert (job.status, job.reason, job.stage, job.started_at) == (Status.PENDING, "no coordinator", "", None)
    assert ledger.claim_all(["aaaa1111"], "d", 60)


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
    ledger.claim_all(["c"], "x", 60)
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
