"""`farm fetch`: write the bundles of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.commands.bundle import print_damage
from cli.exit_codes import BLOB_LOST, OK, PARTIAL, exit_code_of
from cli.options.jobs import JobsOrLatest, OfSubmission, selected_jobs
from cli.output.console import print_error, print_warning, stderr, stdout
from farm.config.units import counted
from farm.errors import FarmError
from farm.jobs.completeness import MissingLayer
from farm.jobs.model import Job

if TYPE_CHECKING:
    from farm.api import Farm


def fetch(
    job: JobsOrLatest = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="The folder to write, or one file if it ends in .farm; several jobs get a subfolder each.",
        ),
    ] = Path("bundle"),
    submission: OfSubmission = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Fetch the compiled layers of a failed job; exits with 104.")
    ] = False,
    ptx: Annotated[
        bool, typer.Option("--ptx", help="Add the kernels' PTX, which drivers compile for later GPUs.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--verify", help="Check every digest again, and that the records of the cubins are signed.")
    ] = False,
    sign: Annotated[
        bool, typer.Option("--sign", help="Verify the layers, and sign the bundle with FARM_SIGNING_KEYS.")
    ] = False,
) -> int:
    """Write the bundles of jobs: cubins, and a manifest that says how to launch them.

    With --partial the bundle of a failed job has the layers whose cubins were all built; the manifest's `missing`
    lists the others. If one of several jobs cannot be fetched, the others are, and the exit code tells.

    With --ptx each layer also has PTX of its newest virtual architecture, for GPUs that no cubin fits. It is rebuilt
    from the stored template and weights. Drivers cache its compiled code up to CUDA_CACHE_MAXSIZE.
    """
    from farm.api import Farm
    from farm.bundle.reader import Bundle
    from farm.bundle.writer import bundle_targets
    from farm.config.settings import load_settings

    code = OK
    with Farm.open(load_settings()) as farm:
        jobs = selected_jobs(farm, job, submission)
        folders = bundle_targets([(each.name, each.model_digest) for each in jobs], output)
        for each, folder in zip(jobs, folders, strict=True):
            try:
                written = farm.fetch(each.id, folder, partial=partial, ptx=ptx, sign=sign)
                missing = farm.missing_layers(each.id) if partial else ()
            except FarmError as error:
                if len(jobs) == 1:
                    raise
                print_error(f"{each.name}: {error}")  # continue with the other jobs
                code = max(code, exit_code_of(error) or 0)
                continue
            bundle = Bundle(folder)
            cubins = sum(len(layer.cubins) for layer in bundle.layers.values())
            if check and (print_damage(bundle) or _print_unsigned(farm, each)):
                code = max(code, BLOB_LOST)
            stdout().print(Text(f"{written}: {counted(cubins, 'cubin')}"), soft_wrap=True)
            if missing:
                code = max(code, PARTIAL)
                _warn(each, missing)
    return code


def _print_unsigned(farm: Farm, job: Job) -> int:
    """Print each cubin whose record is not signed; return their number."""
    names = farm.unsigned_results(job.id)
    for name in names:
        print_error(f"{job.name} {name}: the store has no valid signed record of this cubin. Run farm compile again")
    return len(names)


def _warn(job: Job, missing: Sequence[MissingLayer]) -> None:
    """Print the layers that a partial bundle lacks, on stderr."""
    layers = counted(len({each.name for each in missing}), "layer")
    print_warning(f"the bundle of {job.name} is incomplete, without {layers} and the network:")
    for each in missing:
        line = f"  {each.name} for {', '.join(each.archs)}: {each.reason}"
        stderr().print(Text(line, style="yellow"), soft_wrap=True)
