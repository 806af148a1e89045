"""The ledger with 100,000 builds, on SQLite and on PostgreSQL."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Part, Tiling
from codegen.keys import CubinKey, TemplateKey
from farm.config.settings import load_settings
from farm.jobs.model import Build, BuildOptions, BuildResult, NewJob, NewSubmission, Outcome, Status
from farm.ledger import Ledger, open_ledger, upgrade_database
from farm.reports.explanation import explain
from tests.services.postgresql import PostgreSQL, lacks_postgresql

JOBS = 1000
LAYERS = 20
SUBMISSIONS = 5
OPTIONS = BuildOptions(("sm_75", "sm_80", "sm_86", "sm_90", "sm_120"))
SPEC, TILING = Conv2d(64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1)), Tiling("conv2d", 8, 8, 1, 4, 3, 2)
TEMPLATE = TemplateKey(SPEC, TILING, "0f" * 32, "13.0.88", "1f" * 32, ("-O3",), "compute_80")


def ledger() -> None:
    """1,000 jobs of 20 layers for 5 architectures go in within 10 s; at 100,000 builds a status takes under 50 ms."""
    for kind, url in databases():
        settings = load_settings({"FARM_DATABASE_URL": url})
        upgrade_database(settings)
        opened = open_ledger(settings)
        measure(kind, opened)
        opened.close()


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sparse-farm-") as name:
        yield Path(name)


def databases() -> Iterator[tuple[str, str]]:
    with folder() as path:
        yield "SQLite", f"sqlite:///{path / 'farm.db'}"
    if reason := lacks_postgresql():
        print(f"  {reason}")
        return
    with PostgreSQL(safe=True) as server:
        yield "PostgreSQL", server.url(server.new_database())


def measure(kind: str, ledger: Ledger) -> None:
    times = [seconds(partial(submit, ledger, i)) for i in range(SUBMISSIONS)]
    builds = SUBMISSIONS * JOBS * LAYERS
    print(f"  {kind}: submit {JOBS} jobs, {JOBS * LAYERS} builds: {times[0]:.2f} s, the fifth time {times[-1]:.2f} s")
    ids = [job.id for job in ledger.jobs(limit=JOBS)]
    claim = seconds(lambda: ledger.claim_all(ids, "me", 60))
    print(f"  {kind}: claim {JOBS} jobs {claim * 1e3:.0f} ms; extend their leases {of(ledger_beat(ledger))}")
    results = [
        BuildResult(build.id, arch, 0, Outcome.BUILT, "11" * 32, "22" * 32, "33" * 32)
        for job_id in ids[:50]
        for build in ledger.builds(job_id)
        for arch in OPTIONS.archs
    ]
    record = seconds(lambda: ledger.record_results(results))
    print(f"  {kind}: record {len(results)} results {record * 1e3:.0f} ms")
    asked: dict[str, Callable[[], object]] = {
        "status of the newest 20": lambda: (ledger.counts(), ledger.jobs(limit=20)),
        "of those that run": lambda: (ledger.counts(), ledger.jobs(states=[Status.RUNNING], limit=20)),
        "of one architecture": lambda: (ledger.counts(), ledger.jobs(arch="sm_90", limit=20)),
        "of all": lambda: (ledger.counts(), ledger.jobs()),
        "one job by its id": lambda: ledger.job(ids[0]),
        "its layers and cubins": lambda: (ledger.builds(ids[0]), ledger.results(ids[0])),
    }
    for name, ask in asked.items():
        print(f"  {kind}, {builds} builds: {name} {of(ask)}")
    count = build_all(ledger, ids)
    newest = ledger.job(ids[0])
    rows = ledger.builds(newest.id), ledger.results(newest.id)
    looked_back: dict[str, Callable[[], object]] = {
        "statistics": ledger.statistics.read,
        "why a layer was built": lambda: explain(ledger, newest, *rows, "conv0"),
    }
    for name, ask in looked_back.items():
        print(f"  {kind}, {count} results: {name} {of(ask)}")


def build_all(ledger: Ledger, ids: Sequence[str]) -> int:
    """Results for these jobs, newest first: each layer of each has new weights, all layers have one template."""
    ledger.record_keys("template", {TEMPLATE.digest: TEMPLATE.fields()})
    recorded = 0
    for job_id in reversed(ids):
        fields, results = {}, []
        for build in ledger.builds(job_id):
            for arch in OPTIONS.archs:
                key = CubinKey(TEMPLATE.digest, "13.0.88", arch, ("-O3",), f"{build.id:064x}", Part(0, 16), "ef" * 32)
                fields[key.digest] = key.fields()
                results.append(BuildResult(build.id, arch, 0, Outcome.BUILT, TEMPLATE.digest, key.digest, key.digest))
        ledger.record_keys("cubin", fields)
        ledger.record_results([replace(each, template_seconds=1.5, ptxas_seconds=0.5) for each in results])
        recorded += len(results)
    return recorded


def ledger_beat(ledger: Ledger) -> Callable[[], object]:
    return lambda: ledger.extend_lease("me", 60)


def submit(ledger: Ledger, number: int) -> None:
    jobs = []
    for i in range(JOBS):
        job_id = f"{number:04x}{i:08x}"
        builds = tuple(
            Build(
                0,
                job_id,
                at,
                f"conv{at}",
                f"in{at}",
                f"out{at}",
                SPEC,
                TILING,
                "ab" * 32,
                3686,
                "cd" * 32,
                (Part(0, 16),),
            )
            for at in range(LAYERS)
        )
        jobs.append(NewJob(job_id, "net", f"/models/{i}.onnx", "cd" * 32, job_id.ljust(64, "."), OPTIONS, builds))
    ledger.record_submission(NewSubmission(f"s{number}", "ada", tuple(jobs)))


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def of(call: Callable[[], object]) -> str:
    return f"{statistics.median(seconds(call) for _ in range(9)) * 1e3:.1f} ms (median of 9)"
