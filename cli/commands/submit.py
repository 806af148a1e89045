"""`farm submit`: submit checkpoints for a coordinator elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from cli.exit_codes import OK, USAGE
from cli.options.build import BuildRequest, build_options
from cli.options.output import AsJson
from cli.output.console import print_json, print_warning, stderr, stdout
from cli.output.jobs import job_json
from farm.config.units import counted

if TYPE_CHECKING:
    from farm.api import Farm
    from farm.jobs.submission import Submission

UNSERVED = "no coordinator is alive: the jobs stay PENDING until farm serve runs"


@build_options()
def submit(request: BuildRequest, as_json: AsJson = False) -> int:
    """Submit checkpoints and print the jobs' ids; farm serve compiles them."""
    from farm.api import Farm
    from farm.config.settings import load_settings

    with Farm.open(load_settings()) as farm:
        checkpoints = request.read(farm)
        if not checkpoints:
            return USAGE
        submission = farm.submit(checkpoints, request.options, name=request.name)
        jobs = list({job.id: job for job in submission.jobs}.values())  # a model given twice is one job
        for warning in submission.warnings:
            print_warning(warning)
        if as_json:
            newest_first = [job_json(job) for job in reversed(jobs)]
            print_json({"submission": submission.id, "jobs": newest_first})
        else:
            for job in jobs:
                stdout().print(Text(f"{job.id}  {job.name}"), soft_wrap=True)
        warn_if_unserved(farm)
        if not as_json:
            print_next(len(jobs), submission)
    return OK if len(checkpoints) == len(request.models) else USAGE


def print_next(count: int, submission: Submission) -> None:
    """Print the next commands on stderr; stdout has the ids only."""
    text = f"submitted {counted(count, 'job')}{'' if submission.is_new else ' before'}; next: farm status --watch"
    if submission.is_new:  # an earlier one may have more jobs than these
        text += f"   farm cancel --submission {submission.id}"
    stderr().print(Text(text, style="dim"), soft_wrap=True)


def warn_if_unserved(farm: Farm) -> None:
    """Warn if no coordinator is alive to run the jobs."""
    if not farm.is_served():
        print_warning(UNSERVED)
