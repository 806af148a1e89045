"""Jobs and results for the tests of the ledger."""

from __future__ import annotations

from codegen.ir.layer_spec import Conv2d, SkippedLayer
from codegen.ir.tiling import Part, Tiling
from farm.jobs.model import Build, BuildOptions, BuildResult, NewJob, NewSubmission, Outcome
from farm.ledger import Ledger
from tests.samples import LAUNCH

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
    tiling = Tiling("conv2d", 8, 8, 1, 4, 3, 2)
    builds = tuple(
        Build(0, job_id, i, f"conv{i}", f"in{i}", f"out{i}", SPEC, tiling, "ab" * 32, 10 + i, "cd" * 32, parts)
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
        launch=LAUNCH,
    )
