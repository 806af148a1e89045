"""`farm fetch`: the cubins of jobs and their manifests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cli.commands.bundle import print_damage
from cli.exit_codes import BLOB_LOST, OK, PARTIAL, exit_code_of
from cli.options.jobs import JobsOrLatest, OfSubmission, selected_jobs
from cli.output.console import print_error, stderr, stdout
from cli.output.format import counted
from farm.errors import FarmError
from farm.jobs.completeness import MissingLayer
from farm.jobs.model import Job


def fetch(
    job: JobsOrLatest = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="The folder to write, or with a name in .farm one file; of several jobs, one below it each.",
        ),
    ] = Path("bundle"),
    submission: OfSubmission = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Of a job that failed, the layers that were compiled; exits with 104.")
    ] = False,
    ptx: Annotated[
        bool, typer.Option("--ptx", help="Add the kernels' PTX, which drivers compile for later GPUs.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--verify", help="Read what was written again and check every digest.")
    ] = False,
) -> int:
    """Copy the bundles of jobs: cubins per layer and architecture, and manifest.json that says how to launch them."""
    from farm.api import Farm
    from farm.bundle.reader import Bundle
    from farm.config.settings import load_settings

    code = OK
    with Farm.open(load_settings()) as farm:
        jobs = selected_jobs(farm, job, submission)
        for each, folder in zip(jobs, bundle_folders(jobs, output), strict=True):
            try:
                written = farm.fetch(each.id, folder, partial=partial, ptx=ptx)
                missing = farm.missing_layers(each.id) if partial else ()
            except FarmError as error:
                if len(jobs) == 1:
                    raise
                print_error(f"{each.name}: {error}")  # the others are wanted nevertheless
                code = max(code, exit_code_of(error) or 0)
                continue
            bundle = Bundle(folder)
            cubins = sum(len(layer.cubins) for layer in bundle.layers.values())
            code = max(code, BLOB_LOST if check and print_damage(bundle) else OK)
            stdout().print(Text(f"{written}: {counted(cubins, 'cubin')}"), soft_wrap=True)
            if missing:
                code = max(code, PARTIAL)
                _warn(each, missing)
    return code


def _warn(job: Job, missing: Sequence[MissingLayer]) -> None:
    """What the bundle lacks, on the standard error stream."""
    layers = counted(len({each.name for each in missing}), "layer")
    lines = [f"warning: the bundle of {job.name} is a part, it lacks {layers} and the network around them:"]
    lines += [f"  {each.name} for {', '.join(each.archs)}: {each.reason}" for each in missing]
    stderr().print(Text("\n".join(lines), style="yellow"), soft_wrap=True)


def bundle_folders(jobs: Sequence[Job], output: Path) -> list[Path]:
    """Where each job's bundle goes: one alone into the folder itself, several into folders of their names below it."""
    from farm.bundle.writer import safe_names

    if len(jobs) == 1:
        return [output]
    names = [job.name for job in jobs]
    # Jobs of one name are told apart by their ids.
    own = [name if names.count(name) == 1 else f"{name}-{job.id[:8]}" for name, job in zip(names, jobs, strict=True)]
    return [output / name for name in safe_names(own)]
