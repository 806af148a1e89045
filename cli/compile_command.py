"""`farm compile`: checkpoints in, cubins in the store; submits, waits and shows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.exit_codes import USAGE, exit_code_of_job
from cli.layers import layer_table, skipped_lines
from cli.options import archs_of, form_of, input_shapes_of
from cli.progress import CompileProgress
from cli.render import counts_line, duration, job_json, job_table, print_json, status_text, stderr, stdout
from codegen.errors import CheckpointError
from farm.errors import UsageError
from farm.jobs import BuildOptions, Status

if TYPE_CHECKING:
    from farm.api import Farm

LAYERS_OF_JOBS = 3
"""Up to so many jobs, the end shows every layer."""


def compile_models(
    models: Annotated[list[Path], typer.Argument(help="ONNX files.", metavar="MODEL", show_default=False)],
    arch: Annotated[
        list[str], typer.Option("--arch", help="Architectures, as in sm_80,sm_90; may be repeated.", show_default=False)
    ],
    batch: Annotated[int, typer.Option("--batch", min=1, help="Batch size to optimise for; others run too.")] = 64,
    input_shape: Annotated[
        list[str] | None,
        typer.Option("--input-shape", metavar="NAME:1,3,224,224", help="Shape of an input that the file leaves open."),
    ] = None,
    template: Annotated[
        str, typer.Option("--template", metavar="rolled|full", help="full: everything unrolled before nvcc (slow).")
    ] = "rolled",
    optimisation: Annotated[int, typer.Option("-O", min=0, max=3, help="Optimisation level of ptxas.")] = 3,
    strict: Annotated[bool, typer.Option("--strict", help="A layer that cannot be compiled fails the call.")] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Compile the other files when one cannot be read.")
    ] = False,
    name: Annotated[str | None, typer.Option("--name", help="Name of the jobs instead of the file's.")] = None,
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Processes at once.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Fetch the bundles into this folder at the end.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")] = False,
) -> int:
    """Compile pruned ONNX checkpoints and wait, with progress. The same call again compiles nothing."""
    from farm.api import Farm
    from farm.settings import load_settings

    errors = stderr()
    start = time.monotonic()
    form = form_of(template)
    options = BuildOptions(archs_of(arch), batch=batch, form=form, optimisation=optimisation, strict=strict)
    shapes = input_shapes_of(input_shape or [])
    with Farm.open(load_settings(overrides={"jobs": jobs})) as farm:
        checkpoints = []
        unread = 0
        for path in models:
            try:
                checkpoints.append(farm.read(path, shapes))
            except CheckpointError as error:
                if not keep_going:
                    raise
                unread += 1
                errors.print(Text(f"farm: {error}", style="red"))
        if not checkpoints:
            return USAGE
        submission = farm.submit(checkpoints, options, name=name)
        ids = [job.id for job in submission.jobs]
        for id in ids:
            for warning in farm.warnings(id):
                errors.print(Text(f"warning: {warning}", style="yellow"))
        with CompileProgress(errors, quiet=quiet or as_json) as progress:
            done = farm.run(ids, progress)
        seconds = time.monotonic() - start
        if output is not None:
            for job in done:
                if job.status == "SUCCEEDED":
                    folder = output if len(done) == 1 else output / f"{job.name}-{job.id[:8]}"
                    farm.fetch(job.id, folder)
        if as_json:
            print_json({"submission": submission.id, "seconds": seconds, "jobs": [job_json(job) for job in done]})
        else:
            _print_end(farm, ids, progress, seconds, output)
    codes = [exit_code_of_job(job) for job in done]
    return max(codes) or (USAGE if unread else 0)


def _print_end(farm: Farm, ids: Sequence[str], progress: CompileProgress, seconds: float, output: Path | None) -> None:
    console = stdout()
    details = [farm.inspect(id) for id in ids]
    if len(details) <= LAYERS_OF_JOBS:
        for detail in details:
            head = Text(f"\n{detail.job.name}  job {detail.job.id[:8]}  ", style="bold")
            console.print(
                head.append_text(status_text(detail.job.status)).append(f"  {detail.job.reason}", style="none")
            )
            console.print(layer_table(detail, console.width))
            for line in skipped_lines(detail.job):
                console.print(line)
    else:
        console.print(job_table([detail.job for detail in details], console.width))
    counts: dict[Status, int] = {}
    for detail in details:
        counts[detail.job.status] = counts.get(detail.job.status, 0) + 1
    total = progress.hits + progress.built + progress.failed
    share = f"{progress.hits / total:.0%}" if total else "no"
    console.print()
    console.print(counts_line(counts))
    console.print(
        f"{total} cubins: {share} cache hits ({progress.hits} hits, {progress.built} built, {progress.failed} failed), "
        f"{progress.templates_made} templates made, {duration(seconds)}"
    )
    if output is not None:
        console.print(f"bundles: {output}")
    else:
        console.print(f"next: farm fetch {ids[-1][:8]} -o DIR   farm verify {ids[-1][:8]}", style="dim")
