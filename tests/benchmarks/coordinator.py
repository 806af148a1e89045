"""A coordinator with tools that take no time: what it can do itself, on SQLite and on PostgreSQL."""

from __future__ import annotations

import multiprocessing
import re
import time
from dataclasses import dataclass
from pathlib import Path

from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Part, Tiling
from farm.config.settings import load_settings
from farm.executors.inline import InlineExecutor
from farm.jobs.model import Build, BuildOptions, NewJob, NewSubmission, Status
from farm.ledger import Ledger, open_ledger, upgrade_database
from farm.scheduler.coordinator import Coordinator
from farm.store.memory import MemoryStore
from farm.worker.build import Worker
from farm.worker.messages import CubinFacts, CubinResult, Request, Result, TemplateRequest, TemplateResult
from tests.benchmarks.ledger import databases
from tests.samples import LAUNCH, fixed_toolchain

BUILDS = 100_000
FEW_BUILDS = 10_000
LAYERS = 20
JOBS_IN_SUBMISSION = 500
OPTIONS = BuildOptions(("sm_90",))
TILING = Tiling("conv2d", 8, 8, 1, 4, 3, 2)
FACTS = CubinFacts("ab" * 32, 4096, "cd" * 32, "cd" * 32, 100, 900, 32, 0, 0.01, 0.2, LAUNCH)


class InstantWorker(Worker):
    """A worker that reports every request as built, and stores nothing."""

    def __init__(self) -> None:
        """Needs nothing that a worker needs."""

    def build(self, request: Request) -> Result:
        if isinstance(request, TemplateRequest):
            return TemplateResult(request.key, seconds=1.0)
        return CubinResult(request.key, FACTS)


@dataclass(frozen=True)
class Served:
    seconds: float
    peak_bytes: int


def coordinator() -> None:
    """100,000 builds with tools that take no time and no store: 500/s or more, and no more memory than for 10,000."""
    for kind, url in databases():
        upgrade_database(load_settings({"FARM_DATABASE_URL": url}))
        served = {count: serve_new(url, count) for count in (FEW_BUILDS, BUILDS)}
        for count, each in served.items():
            rate, peak = count / each.seconds, each.peak_bytes / 1e6
            print(f"  {kind}: {count} builds: {rate:.0f}/s ({each.seconds:.1f} s), peak memory {peak:.1f} MB")
        growth = served[BUILDS].peak_bytes / served[FEW_BUILDS].peak_bytes
        print(f"  {kind}: peak memory of {BUILDS} builds / of {FEW_BUILDS}: {growth:.2f}x")


def serve_new(url: str, count: int) -> Served:
    """Submits `count` builds and runs them in a process of their own, whose memory is its own."""
    ledger = open_ledger(load_settings({"FARM_DATABASE_URL": url}))
    for first in range(0, count // LAYERS, JOBS_IN_SUBMISSION):
        submit(ledger, f"{count}-{first}", min(JOBS_IN_SUBMISSION, count // LAYERS - first))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        served = pool.apply(serve, (url,))
    counts = ledger.counts()
    assert set(counts) == {Status.SUCCEEDED}, counts
    ledger.close()
    return served


def serve(url: str) -> Served:
    """Runs all that is pending."""
    settings = load_settings({"FARM_DATABASE_URL": url, "FARM_STORE": "file:///nowhere"})
    ledger = open_ledger(settings)
    store, executor = MemoryStore(), InlineExecutor(InstantWorker())
    start = time.perf_counter()
    Coordinator(ledger, store, executor, fixed_toolchain(), settings).serve(drain=True)
    seconds = time.perf_counter() - start
    ledger.close()
    return Served(seconds, peak_bytes())


def peak_bytes() -> int:
    """Peak memory of this program; figures of ended children would include the process that they were forked from."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def submit(ledger: Ledger, name: str, count: int) -> None:
    """Jobs whose layers have the same shapes and other weights: the templates are shared, no cubin is."""
    jobs = []
    for i in range(count):
        job_id = f"{name}-{i:05}"
        builds = tuple(
            Build(
                id=0,
                job=job_id,
                position=at,
                layer=f"conv{at}",
                input=f"in{at}",
                output=f"out{at}",
                spec=Conv2d(64, 56, 56, 16 + at, 3, 3, padding=(1, 1, 1, 1)),
                tiling=TILING,
                weights=f"{job_id}-{at}".ljust(64, "."),
                nonzeros=900 + at,
                mask=f"{job_id}-{at}".ljust(64, "."),
                parts=(Part(0, 1),),
            )
            for at in range(LAYERS)
        )
        jobs.append(NewJob(job_id, "net", f"/models/{i}.onnx", "cd" * 32, job_id.ljust(64, "."), OPTIONS, builds))
    ledger.record_submission(NewSubmission(name, "ada", tuple(jobs)))
