"""The ledger's facts about the cache on both databases: references, statistics, similar keys, pruning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from farm.jobs.model import BuildResult, Outcome, Status
from farm.ledger import Ledger, Reference, ReferenceKind, TemplateRun
from farm.ledger.tables import jobs, keys, now
from tests.services.conftest import Database
from tests.services.ledger_rows import new_job, result, submit


def finish(
    ledger: Ledger,
    job_id: str,
    *results: BuildResult,
    status: Status = Status.SUCCEEDED,
    ran: tuple[tuple[str, float], ...] = (),
) -> None:
    """A job whose layers, in order, have these results, and for which nvcc ran that long for these templates."""
    ledger.claim_all([job_id], "c", 60)
    runs = [TemplateRun(f"{job_id}-{i}", key * 32, job_id, seconds) for i, (key, seconds) in enumerate(ran)]
    ledger.statistics.record_runs(runs)
    ids = [build.id for build in ledger.builds(job_id)]
    ledger.record_results([replace(each, build=ids[each.build]) for each in results])
    ledger.add_event(job_id, "info", "planned")
    ledger.finish(job_id, status, "")


def end_earlier(ledger: Ledger, seconds: float) -> None:
    """All jobs that have ended."""
    with ledger._database.writing() as connection:
        connection.execute(update(jobs).values(finished_at=jobs.c.finished_at - seconds))


def record_earlier(ledger: Ledger, seconds: float) -> None:
    """All keys."""
    with ledger._database.writing() as connection:
        connection.execute(update(keys).values(recorded_at=keys.c.recorded_at - seconds))


def made(layer: int, template: str = "11", cubin: str = "22", seconds: float = 0.0, arch: str = "sm_80") -> BuildResult:
    keys = {"template_key": template * 32, "cubin_key": cubin * 32, "cubin": f"{cubin}{'c' * 62}"}
    return replace(result(layer, arch), **keys, template_seconds=seconds, command="")


def hit(layer: int, template: str = "11", cubin: str = "22", arch: str = "sm_80") -> BuildResult:
    return replace(made(layer, template, cubin, arch=arch), outcome=Outcome.HIT)


def test_jobs_refer_to_keys_weights_cubins_ptx_and_what_failed_commands_name(ledger: Ledger) -> None:
    assert list(ledger.retention.references()) == []
    submit(ledger, new_job())
    weights = Reference(ReferenceKind.WEIGHTS, "ab" * 32)
    assert list(ledger.retention.references()) == [weights]  # before anything was built
    failed = replace(
        made(1, cubin="55"), outcome=Outcome.FAILED, cubin=None, ptx=None, command=f"ptxas -O3 {'66' * 32}, a blob"
    )
    finish(ledger, "aaaa1111", made(0), failed)
    assert set(ledger.retention.references()) == {
        weights,
        *(Reference(ReferenceKind.KEY, name * 32) for name in ("11", "22", "55")),
        *(Reference(ReferenceKind.BLOB, name) for name in ("22" + "c" * 62, "44" * 32, "66" * 32)),
    }
    for name in ("11" * 32, "55" * 32, "22" + "c" * 62, "44" * 32, "66" * 32, "ab" * 32):
        assert ledger.retention.users(name) == ["aaaa1111"]
    assert ledger.retention.users("99" * 32) == []


@pytest.mark.slow
def test_old_jobs_are_forgotten_with_all_their_rows_and_others_are_not(ledger: Ledger) -> None:
    submit(ledger, *(new_job(f"{i:08x}", f"r{i}") for i in range(450)), new_job("running", "rr"), new_job("new", "rn"))
    ledger.record_keys("cubin", {name * 32: {"a": name} for name in ("22", "33", "44")})
    for i in range(450):
        finish(ledger, f"{i:08x}", made(0, cubin="33"), status=Status.SUCCEEDED if i % 2 else Status.FAILED)
    finish(ledger, "new", made(0, cubin="44"))
    end_earlier(ledger, 7200)
    record_earlier(ledger, 7200)
    submit(ledger, new_job("late", "rl"))
    finish(ledger, "late", made(1, cubin="22"))
    assert ledger.retention.count_older(3600) == 451
    assert list(ledger.retention.prune(3600)) == [200, 200, 51]
    assert [job.id for job in ledger.jobs()] == ["late", "running"]
    assert len(ledger.builds("running")) == 2
    assert [each.cubin_key for each in ledger.results("late")] == ["22" * 32]
    assert [each.text for each in ledger.events("late")] == ["planned"]
    assert ledger.key_fields("22" * 32) == {"a": "22"}
    assert ledger.key_fields("33" * 32) is None
    keys = {each.name for each in ledger.retention.references() if each.kind is ReferenceKind.KEY}
    assert keys == {"11" * 32, "22" * 32}
    assert list(ledger.retention.prune(3600)) == []


def test_a_submission_goes_with_the_last_of_its_jobs(ledger: Ledger) -> None:
    for _ in range(2):
        submit(ledger, new_job("aaaa", "a"))
        finish(ledger, "aaaa", made(0))
        end_earlier(ledger, 7200)
        assert list(ledger.retention.prune(3600)) == [1]


def test_unused_keys_go_while_jobs_run_except_those_that_are_younger_than_a_running_job(ledger: Ledger) -> None:
    submit(ledger, new_job("old", "a"))
    finish(ledger, "old", made(0, cubin="33"))
    ledger.record_keys("cubin", {name * 32: {"a": name} for name in ("33", "55", "66", "ff")})
    record_earlier(ledger, 2 * 86_400)
    submit(ledger, new_job("running", "b"))
    ledger.claim_all(["running"], "c", 60)
    ledger.record_keys("cubin", {"55" * 32: {"a": "55"}, "77" * 32: {"a": "77"}})  # the results come later
    assert list(ledger.retention.prune(86_400)) == []
    assert ledger.key_fields("33" * 32) == {"a": "33"}  # its job is still there
    assert [ledger.key_fields(name * 32) for name in ("66", "ff")] == [None, None]
    with ledger._database.writing() as connection:
        connection.execute(update(jobs).values(submitted_at=jobs.c.submitted_at - 3 * 86_400))
    record_earlier(ledger, 2 * 86_400)
    assert list(ledger.retention.prune(86_400)) == []
    assert [ledger.key_fields(name * 32) for name in ("55", "77")] == [{"a": "55"}, {"a": "77"}]
    ledger.release("c", "stopped")
    assert list(ledger.retention.prune(86_400)) == []
    assert [ledger.key_fields(name * 32) for name in ("55", "77")] == [None, None]


def test_keys_are_pruned_without_waiting_for_a_transaction_that_records_them(postgresql_database: Database) -> None:
    ledger = postgresql_database.open()
    ledger.record_keys("cubin", {name * 32: {} for name in ("11", "22")})
    record_earlier(ledger, 2 * 86_400)
    with ledger._database.writing() as connection:
        connection.execute(update(keys).where(keys.c.digest == "11" * 32).values(recorded_at=now()))
        assert list(ledger.retention.prune(86_400)) == []
    assert [ledger.key_fields(name * 32) for name in ("11", "22")] == [{}, None]
    ledger.close()


def test_a_lease_is_taken_by_one_holder_until_it_ends_or_is_released(ledger: Ledger) -> None:
    leases = ledger.leases
    assert [leases.acquire("a", holder, 60) for holder in ("x", "y", "x")] == ["x", "x", "x"]
    assert leases.acquire("b", "y", 60) == "y"
    assert (leases.renew("a", "x", -1), leases.renew("a", "y", 60)) == (True, False)
    assert leases.renew("a", "x", -1)  # it has ended, and nobody took it
    assert leases.acquire("a", "y", 60) == "y"
    assert not leases.renew("a", "x", 60)
    leases.release("a", "x")
    assert leases.acquire("a", "x", 60) == "y"
    leases.release("a", "y")
    assert leases.acquire("a", "x", 60) == "x"


def test_statistics_of_an_empty_ledger_have_no_rate(ledger: Ledger) -> None:
    found = ledger.statistics.read()
    assert (found.since, found.cubin.rate, found.template.rate, found.fmas_deleted) == (None, None, None, 0)


def test_hits_count_over_hits_and_misses_and_failures_over_neither(ledger: Ledger) -> None:
    submit(ledger, new_job("a", "a"), new_job("b", "b"))
    failed = replace(made(1, cubin="99"), outcome=Outcome.FAILED, fmas_kept=0, fmas_deleted=0, ptxas_seconds=0)
    finish(ledger, "a", made(0, seconds=2.0), made(0, seconds=2.0, arch="sm_90"), failed)
    finish(ledger, "b", hit(0), hit(1), hit(1, arch="sm_90"), made(0, cubin="88", arch="sm_90"))
    found = ledger.statistics.read()
    assert (found.cubin.hits, found.cubin.misses, found.cubin.rate, found.failed) == (3, 3, 0.5, 1)
    assert found.cubin.spent_seconds == pytest.approx(0.6)
    assert found.cubin.saved_seconds == pytest.approx(0.6)
    assert (found.fmas_kept, found.fmas_deleted, found.built_bytes, found.hit_bytes) == (30, 36, 12288, 12288)


def test_a_template_is_looked_up_once_by_each_job_that_builds_and_made_once_for_jobs_that_share_it(
    ledger: Ledger,
) -> None:
    submit(ledger, *(new_job(name, name) for name in "abcd"))
    # a and b run together and share the run of nvcc; c finds the template, d all its cubins.
    a = (made(0, seconds=2.5), made(1, template="12", cubin="23", seconds=1.0))
    finish(ledger, "a", *a, ran=(("11", 2.5), ("12", 1.0)))
    finish(ledger, "b", made(0, cubin="24", seconds=2.5))
    finish(ledger, "c", made(0, cubin="25"))
    finish(ledger, "d", hit(0))
    found = ledger.statistics.read().template
    assert (found.hits, found.misses, found.rate) == (2, 2, 0.5)
    assert found.spent_seconds == pytest.approx(3.5)
    assert found.saved_seconds == pytest.approx(7.5)  # b, c and d would have run nvcc too


def test_each_run_of_nvcc_counts_whatever_became_of_the_jobs_and_however_alike_they_are(ledger: Ledger) -> None:
    submit(ledger, *(new_job(name, name) for name in "ab"))
    # Two templates that took the very same time; a was cancelled before it had results of one of them.
    finish(ledger, "a", made(0, seconds=1.5), ran=(("11", 1.5), ("12", 1.5)))
    ledger.statistics.record_runs([TemplateRun("a-0", "11" * 32, "a", 1.5)])  # told twice: the database was away
    # b found the first in the store, and its second was gone from there: nvcc ran again.
    finish(ledger, "b", made(0, cubin="24"), made(1, template="12", cubin="25", seconds=1.5), ran=(("12", 1.5),))
    found = ledger.statistics.read().template
    assert (found.misses, found.hits, found.spent_seconds, found.saved_seconds) == (3, 1, 4.5, 1.5)


def test_after_zero_only_what_comes_later_counts_and_nothing_is_lost(ledger: Ledger) -> None:
    submit(ledger, new_job("a", "a"), new_job("b", "b"))
    finish(ledger, "a", made(0, seconds=2.0), made(1, cubin="23", seconds=2.0), ran=(("11", 2.0),))
    zero = ledger.statistics.zero()
    found = ledger.statistics.read()
    assert (found.since, found.cubin.misses, found.template.misses, found.fmas_deleted) == (zero, 0, 0, 0)
    finish(ledger, "b", hit(0), made(1, cubin="24"))
    found = ledger.statistics.read()
    assert (found.cubin.hits, found.cubin.misses) == (1, 1)
    assert (found.template.hits, found.template.misses) == (1, 0)
    assert found.template.saved_seconds == pytest.approx(2.0)  # what it took is known from before
    assert ledger.statistics.read(all_time=True).cubin.misses == 3
    assert ledger.statistics.zero() >= zero
    assert ledger.statistics.read().cubin.hits == 0


def test_keys_of_earlier_jobs_are_found_with_the_newest_that_used_them(ledger: Ledger) -> None:
    submit(ledger, *(new_job(name, name) for name in "abc"))
    ledger.record_keys("cubin", {name * 32: {"name": name} for name in ("22", "23", "24", "25")})
    failed = replace(made(1, cubin="25"), outcome=Outcome.FAILED)
    finish(ledger, "a", made(0, cubin="22"), made(1, cubin="23"))
    finish(ledger, "b", hit(0, cubin="22"), failed)
    finish(ledger, "c", made(0, cubin="24"))
    before = {each.digest[:2]: each for each in ledger.neighbours.near(ledger.builds("c")[0], "11" * 32, "sm_80")}
    assert {name: (each.fields, each.number, each.layers) for name, each in before.items()} == {
        "22": ({"name": "22"}, 2, {"conv0"}),
        "23": ({"name": "23"}, 1, {"conv1"}),
    }
    assert ledger.neighbours.near(ledger.builds("a")[0], "11" * 32, "sm_80") == []
    uses = ledger.neighbours.uses("22" * 32)
    assert [(use.job, use.layer, use.outcome) for use in uses] == [
        ("a", "conv0", Outcome.BUILT),
        ("b", "conv0", Outcome.HIT),
    ]
