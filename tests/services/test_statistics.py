"""Statistics from the counters of jobs equal those counted from all results, on both databases."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from typing import Any

import pytest
from sqlalchemy import delete, func, select

from farm.jobs.model import BuildResult, JobSet, Outcome, Status
from farm.ledger import Ledger, Statistics, TemplateRun
from farm.ledger.tables import job_counters
from tests.services.ledger_rows import new_job, result, submit

JOBS = [f"{number:08}" for number in range(12)]
TEMPLATES = ("11", "12", "13")
ARCHS = ("sm_80", "sm_90")


def drawn(draw: random.Random, build: int, arch: str, *, first: bool) -> BuildResult:
    """A result; those of the first job say how long each skeleton took."""
    template = TEMPLATES[build % len(TEMPLATES)]
    outcome = Outcome.BUILT if first else draw.choice([Outcome.BUILT, Outcome.BUILT, Outcome.HIT, Outcome.FAILED])
    failed = outcome is Outcome.FAILED
    return replace(
        result(build, arch, outcome),
        template_key=template * 32,
        template_seconds=draw.choice([0.0, 1.5]),
        skeleton_seconds=0.25 * (1 + build % len(TEMPLATES)) if first else 0.0,
        ptxas_seconds=0.0 if failed else draw.randrange(1, 9) / 8,
        fmas_kept=0 if failed else draw.randrange(100),
        assembler=draw.choice(["ptxas", "direct"]) if not first else "direct",
    )


def record(ledger: Ledger, draw: random.Random, job: str, part: slice, *, first: bool = False) -> list[BuildResult]:
    """Records results of some layers of a job."""
    builds = [build.id for build in ledger.builds(job)][part]
    made = [drawn(draw, build, arch, first=first) for build in builds for arch in ARCHS]
    ledger.record_results(made)
    return made


def flat(statistics: Statistics) -> dict[str, Any]:
    """The numbers, sums of seconds rounded."""
    numbers = asdict(replace(statistics, since=None))
    for stage in ("template", "skeleton", "cubin"):
        numbers |= {f"{stage}_{name}": value for name, value in numbers.pop(stage).items()}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in numbers.items()}


def kept(ledger: Ledger) -> int:
    """Number of jobs that have counters."""
    with ledger._database.reading() as connection:
        return connection.execute(select(func.count()).select_from(job_counters)).scalar_one()


def without_counters(ledger: Ledger, *, all_time: bool) -> dict[str, Any]:
    """Statistics counted from all results."""
    with ledger._database.writing() as connection:
        connection.execute(delete(job_counters))
    return flat(ledger.statistics.read(all_time=all_time))


def plain(ledger: Ledger, runs: dict[tuple[str, str], float]) -> dict[str, Any]:
    """The statistics of cubins and templates, in Python."""
    found = [(job, each) for job in JOBS for each in ledger.results(job)]
    built = [each for _, each in found if each.outcome is Outcome.BUILT]
    hits = [each for _, each in found if each.outcome is Outcome.HIT]
    used = {(job, each.template_key) for job, each in found if each.outcome is not Outcome.FAILED} - runs.keys()
    looked = {
        (job, each.template_key)
        for job, each in found
        if each.outcome is Outcome.BUILT or (each.outcome is Outcome.HIT and each.template_seconds > 0)
    }
    usual = {key: seconds for (_, key), seconds in runs.items()}
    return {
        "cubin_hits": len(hits),
        "cubin_misses": len(built),
        "cubin_spent_seconds": round(sum(each.ptxas_seconds for each in built), 6),
        "cubin_saved_seconds": round(sum(each.ptxas_seconds for each in hits), 6),
        "failed": len(found) - len(hits) - len(built),
        "direct": sum(each.assembler == "direct" for each in built),
        "fmas_kept": sum(each.fmas_kept for each in [*hits, *built]),
        "template_hits": len(looked - runs.keys()),
        "template_misses": len(runs),
        "template_spent_seconds": sum(runs.values()),
        "template_saved_seconds": sum(usual[key] for _, key in used),
    }


@pytest.mark.parametrize("seed", range(3))
def test_counters_of_jobs_add_up_to_what_all_results_say(ledger: Ledger, seed: int) -> None:
    draw = random.Random(seed)
    submit(ledger, *(new_job(job, job, layers=6) for job in JOBS))
    runs = {(JOBS[0], key * 32): 0.5 + number for number, key in enumerate(TEMPLATES)}
    ledger.claim_all(JOBS[:-2], "c", 60)
    for number, ((job, key), seconds) in enumerate(runs.items()):
        ledger.statistics.record_runs([TemplateRun(str(number), key, job, seconds)])
    record(ledger, draw, JOBS[0], slice(None), first=True)
    for job in JOBS[1:6]:
        record(ledger, draw, job, slice(3))
    for job in JOBS[:3]:
        ledger.finish(job, Status.SUCCEEDED, "")
    ledger.statistics.zero()
    for job in JOBS[3:9]:
        record(ledger, draw, job, slice(2, None))
    for job in JOBS[3:7]:
        ledger.finish(job, draw.choice([Status.SUCCEEDED, Status.FAILED]), "")
    ledger.cancel(JobSet(ids=(JOBS[7], JOBS[10])), "cancelled")
    assert kept(ledger) == 8  # one was cancelled before it had results, two still run
    ledger.retry(JobSet(ids=(JOBS[7],)), "again")
    ledger.claim_all([JOBS[7]], "c", 60)
    ledger.forget_results(JOBS[7], holder="c")
    record(ledger, draw, JOBS[7], slice(1))
    recent, whole = flat(ledger.statistics.read()), flat(ledger.statistics.read(all_time=True))
    assert kept(ledger) == 7
    assert recent == without_counters(ledger, all_time=False)
    assert whole == without_counters(ledger, all_time=True)
    expected = plain(ledger, runs)
    assert {name: whole[name] for name in expected} == expected
    assert min(whole["skeleton_hits"], whole["skeleton_misses"], recent["skeleton_saved_seconds"]) > 0
