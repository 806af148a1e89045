"""`farm compile`: submit checkpoints, compile them here and show the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.exit_codes import OK, USAGE, exit_code_of_job
from cli.options.build import BuildRequest, build_options
from cli.options.output import AsJson
from cli.output.console import print_error, print_json, print_warning, stderr, stdout
from cli.output.failures import failure_lines
from cli.output.jobs import counts_line, job_json, job_table, status_text
from cli.output.layers import assembler_lines, compiled_line, layer_table, left_out_lines, lowered_lines, trust_line
from farm.jobs.model import Status

if TYPE_CHECKING:
    from codegen.ir.checkpoint import Checkpoint
    from farm.api import Farm

LAYERS_OF_JOBS = 3
"""Maximum number of jobs whose layers are all shown at the end."""


@build_options()
def compile_models(
    request: BuildRequest,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", metavar="N", min=1, help="Builds at once; all CPUs if not given.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Also write the bundles into this folder.")
    ] = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only.")] = False,
) -> int:
    """Compile pruned ONNX checkpoints and wait, with progress.

    Running it again compiles nothing. With several models the exit code is the highest of their jobs'. Ctrl-C puts
    the jobs back to PENDING; the same command continues where it stopped.
    """
    from cli.progress.compile import CompileProgress
    from farm.api import Farm
    from farm.bundle.writer import bundle_targets
    from farm.config.settings import load_settings

    start = time.monotonic()
    with Farm.open(load_settings(overrides={"jobs": jobs})) as farm:
        checkpoints = request.read(farm)
        if not checkpoints:
            return USAGE
        if output is not None:
            _check_output(checkpoints, request.name, output)
        farm.check_builds()
        submission = farm.submit(checkpoints, request.options, name=request.name)
        ids = list(dict.fromkeys(job.id for job in submission.jobs))  # a model given twice is one job
        for warning in () if quiet else submission.warnings:
            print_warning(warning)
        try:
            with CompileProgress(stderr(), quiet=quiet or as_json) as progress:
                done = farm.run(ids, progress)
        except KeyboardInterrupt:
            _print_interrupted(farm, ids)
            raise
        seconds = time.monotonic() - start
        if as_json:
            print_json({"submission": submission.id, "seconds": seconds, "jobs": [job_json(job) for job in done]})
        elif quiet:
            for job in done:
                if job.status is not Status.SUCCEEDED:
                    print_error(f"{job.name}: {job.reason or job.status}")
        else:
            _print_end(farm, ids, seconds, fetched=output is not None)
        code = max(exit_code_of_job(job) for job in done)
        if output is not None:
            folders = bundle_targets([(job.name, job.model_digest) for job in done], output)
            for job, folder in zip(done, folders, strict=True):
                if job.status is Status.SUCCEEDED:
                    manifest = farm.fetch(job.id, folder)
                    if not (as_json or quiet):
                        stdout().print(Text(f"bundle: {manifest}"), soft_wrap=True)
    return code or (OK if len(checkpoints) == len(request.models) else USAGE)


def _check_output(checkpoints: Sequence[Checkpoint], name: str | None, output: Path) -> None:
    """Raise UsageError if the bundles of these models could not be written, before minutes of compiling."""
    from farm.bundle.writer import bundle_targets, check_target

    networks = list(dict.fromkeys((name or each.name, each.digest) for each in checkpoints))
    for (own, _), target in zip(networks, bundle_targets(networks, output), strict=True):
        check_target(target, own)


def _print_interrupted(farm: Farm, ids: Sequence[str]) -> None:
    """Print the state of interrupted jobs, and how they continue."""
    for job_id in ids:
        job = farm.job(job_id)
        text = f"job {job.id[:8]} ({job.name}) is {job.status}, {job.done} of {job.total} cubins done"
        if job.status is Status.RUNNING:
            text += "; another coordinator continues it: farm status --watch"
            stderr().print(Text(f"detached: {text}", style="yellow"), soft_wrap=True)
            continue
        stderr().print(Text(f"interrupted: {text}; {job.reason or 'unknown reason'}", style="yellow"), soft_wrap=True)


def _print_end(farm: Farm, ids: Sequence[str], seconds: float, *, fetched: bool) -> None:
    console = stdout()
    details = [farm.inspect(job_id) for job_id in ids]
    if len(details) > LAYERS_OF_JOBS:
        console.print(job_table([detail.job for detail in details], console.width), soft_wrap=True)
        console.print()
    for detail in details:
        if len(details) <= LAYERS_OF_JOBS:
            head = Text(f"{detail.job.name}  job {detail.job.id[:8]}  ", style="bold")
            console.print(head.append_text(status_text(detail.job.status)))
            console.print(layer_table(detail, console.width), soft_wrap=True)
        for line in (*lowered_lines(detail), *assembler_lines(detail), *left_out_lines(detail)):
            console.print(line, soft_wrap=True)
        if len(details) <= LAYERS_OF_JOBS:
            console.print()
    for line in failure_lines(details):
        console.print(line, soft_wrap=True)
    counts: dict[Status, int] = {}
    for detail in details:
        counts[detail.job.status] = counts.get(detail.job.status, 0) + 1
    if len(details) > 1:
        console.print(counts_line(counts))
    console.print(compiled_line(details, seconds), soft_wrap=True)
    if savings := farm.trust_savings(details):
        console.print(Text(trust_line(savings)), soft_wrap=True)
    unwell = [detail.job for detail in details if detail.job.status is not Status.SUCCEEDED]
    for job in unwell:
        console.print(Text(f"{job.name}: {job.reason or job.status}", style="red"), soft_wrap=True)
    last = (unwell or [detail.job for detail in details])[-1].id[:8]
    fetch = "" if fetched else f"   farm fetch {last} -o DIR"
    way_on = f"farm logs {last}" if unwell else f"farm verify {last}{fetch}"
    console.print(Text(f"next: {way_on}", style="dim"))
