"""Costs that grow with a farm: 1,000 checkpoints of 50 layers for 6 architectures, 300,000 builds, as CPU seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import delete

from codegen.ir.tiling import Part
from farm.config.settings import load_settings
from farm.jobs.model import Build, BuildOptions, BuildResult, NewJob, NewSubmission, Outcome, Status
from farm.ledger import Ledger, open_ledger, upgrade_database
from farm.ledger.tables import job_counters
from farm.scheduler.clock import Clock
from farm.scheduler.eta import EtaEstimator
from farm.scheduler.plan import Target
from farm.scheduler.task import State
from farm.scheduler.task_graph import TaskGraph
from farm.worker.messages import CubinRequest, TemplateRequest
from tests.benchmarks.coordinator import TILING
from tests.benchmarks.ledger import databases, seconds
from tests.samples import SMALL
from tests.unit.test_eta import plain_estimate

JOBS = 1000
LAYERS = 50
ARCHS = 6
TEMPLATES = 20
IN_FLIGHT = 64


def growth() -> None:
    """At 300,000 builds: a look at the end of all jobs under 50 ms of CPU, statistics under 100 ms."""
    estimates()
    for kind, url in databases():
        settings = load_settings({"FARM_DATABASE_URL": url})
        upgrade_database(settings)
        ledger = open_ledger(settings)
        statistics(kind, ledger)
        ledger.close()


def statistics(kind: str, ledger: Ledger) -> None:
    """`farm stats` from the counters of jobs against one from all results."""
    builds = tuple(
        Build(0, "", i, f"layer{i}", "x", "y", SMALL, TILING, "ab" * 32, 9, "cd" * 32, (Part(0, 1),))
        for i in range(LAYERS)
    )
    options = BuildOptions(tuple(f"sm_{arch}0" for arch in range(ARCHS)))
    names = [f"job{i:04}" for i in range(JOBS)]
    jobs = tuple(NewJob(name, name, "net.onnx", "0" * 64, name, options, builds) for name in names)
    ledger.record_submission(NewSubmission("all", "ada", jobs))
    filling = time.perf_counter()
    ledger.claim_all(names, "me", 3600)
    for number, name in enumerate(names):
        outcome = Outcome.HIT if number % 2 else Outcome.BUILT
        results = [
            BuildResult(build.id, arch, 0, outcome, f"a{build.position % TEMPLATES:063}", f"c{build.id:063}", "c" * 64)
            for build in ledger.builds(name)
            for arch in options.archs
        ]
        ledger.record_results(results)
        ledger.finish(name, Status.SUCCEEDED, "")
    filling = time.perf_counter() - filling
    summed = min(seconds(ledger.statistics.read) for _ in range(5))
    with ledger._database.writing() as connection:
        connection.execute(delete(job_counters))
    counted = seconds(ledger.statistics.read)
    print(f"  {kind}: {JOBS * LAYERS * ARCHS} results of {JOBS} jobs, written in {filling:.0f} s")
    print(f"  {kind}: statistics {summed * 1e3:.1f} ms, from all results {counted:.1f} s")
    assert summed < 0.1, summed


def estimates() -> None:
    """The estimate each second against one that looks at every task, and the cost of a step's observation."""
    tasks, clock = TaskGraph(), Clock()
    jobs = [f"job{i:04}" for i in range(JOBS)]
    filling = cpu_seconds(lambda: fill(tasks, jobs))
    estimator = EtaEstimator(tasks, clock)
    running = [task.key for task in tasks.in_state(State.IN_FLIGHT)]
    estimator.observe([], running)
    ranks = {task: task.rank for task in tasks}
    looked = min(cpu_seconds(lambda: estimator.estimate(jobs)) for _ in range(5))
    plain = cpu_seconds(lambda: plain_estimate(tasks, ranks, estimator, jobs, clock.now()))
    observed = min(cpu_seconds(lambda: estimator.observe([], running)) for _ in range(5))
    print(f"  {len(tasks)} tasks, filled in {filling:.1f} s: a look {looked * 1e3:.1f} ms, of every task {plain:.1f} s")
    print(f"  an observation {observed * 1e3:.2f} ms")
    assert looked < 0.05, looked


def fill(tasks: TaskGraph, jobs: list[str]) -> None:
    """Cubins of all jobs, ready, of templates that are made; some are submitted."""
    for job in jobs:
        tasks.add_job(job)
    number = 0
    for job in jobs:
        for layer in range(LAYERS):
            template = TemplateRequest(SMALL, TILING, "compute_80", f"a{layer % TEMPLATES:063}", 10, seconds=1.0)
            for arch in range(ARCHS):
                number += 1
                seconds = 0.1 + number * 7919 % 1000 / 100
                cubin = CubinRequest(
                    template, f"{number:064}", Part(0, 1), f"sm_{arch}0", ("-O3",), f"c{number:063}", 9, seconds=seconds
                )
                tasks.add_cubin(cubin, [Target(job, layer, cubin.arch, 0)])
    for state in (State.READY, State.IN_FLIGHT):
        for task in tasks.pop(State.LOOK_UP if state is State.READY else State.READY, len(tasks)):
            if state is State.READY or tasks.count(State.IN_FLIGHT) < IN_FLIGHT:
                tasks.move(task, state)
            else:
                tasks.put_back(task)


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time of this process for a call."""
    start = time.process_time()
    call()
    return time.process_time() - start
