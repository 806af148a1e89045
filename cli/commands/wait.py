"""`farm wait`: wait for jobs to end, for scripts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.commands.submit import warn_if_unserved
from cli.exit_codes import INTERRUPTED, UNFINISHED, exit_code_of_job
from cli.options.jobs import JobsOrLatest, OfSubmission, selected_jobs
from cli.options.output import AsJson
from cli.options.parse import seconds_of
from cli.output.console import print_json, stderr, stdout
from cli.output.jobs import job_json, status_text
from farm.config.units import counted

if TYPE_CHECKING:
    from farm.api import Farm
    from farm.jobs.model import Job

POLL_SECONDS = 0.5


def wait(
    job: JobsOrLatest = None,
    submission: OfSubmission = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="Give up after this time, as in 90s, 15min or 2h."),
    ] = None,
    as_json: AsJson = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print nothing; the exit code tells how the jobs ended.")
    ] = False,
) -> int:
    """Wait until jobs have ended; the exit code is that of the worst job.

    Prints a line for each job as it ends. The exit code is 0 if all succeeded, 101 if one has not ended in time, else
    the highest of 32 and 39 (crashed), 100 (failed) and 103 (cancelled). Ctrl-C stops waiting, not the jobs.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings

    end = None if timeout is None else time.monotonic() + seconds_of("--timeout", timeout)
    with Farm.open(load_settings()) as farm:
        jobs = selected_jobs(farm, job, submission)
        if not quiet and not all(each.status.final for each in jobs):
            warn_if_unserved(farm)
        try:
            jobs = _wait(farm, jobs, end, quiet=quiet or as_json)
        except KeyboardInterrupt:  # stops waiting, not the jobs
            return INTERRUPTED
    if as_json:
        print_json({"jobs": [job_json(each) for each in jobs]})
    elif not quiet and (left := sum(not each.status.final for each in jobs)):
        stderr().print(Text(f"{counted(left, 'job')} of {len(jobs)} unfinished after {timeout}", style="yellow"))
    return code_of(jobs)


def code_of(jobs: Sequence[Job]) -> int:
    """UNFINISHED if a job has not ended, else the highest exit code of the jobs."""
    codes = [exit_code_of_job(each) for each in jobs]
    return UNFINISHED if UNFINISHED in codes else max(codes, default=0)


def _wait(farm: Farm, jobs: Sequence[Job], end: float | None, *, quiet: bool) -> list[Job]:
    """Wait for the jobs, print each as it ends, and return their final state in the same order."""
    from farm.errors import LedgerAwayError

    console, told, away = stdout(), set[str](), False
    while True:
        for job in jobs:
            if job.status.final and job.id not in told:
                told.add(job.id)
                if not quiet:
                    _print_end(job)
        now = time.monotonic()
        if len(told) == len(jobs) or (end is not None and now >= end) or console.reader_gone:
            return list(jobs)
        time.sleep(POLL_SECONDS if end is None else min(POLL_SECONDS, end - now))
        try:
            changed = {job.id for job in jobs} - told
            if end is None or time.monotonic() < end:  # at the end the state of the others is reported, too
                changed -= farm.unfinished(changed)
            found = {job.id: job for job in farm.jobs_by_id(changed)}
            jobs = [found.get(job.id, job) for job in jobs]
            away = False
        except LedgerAwayError as error:
            if not away:
                stderr().print(Text(f"farm: {error}; waiting", style="yellow"), soft_wrap=True)
            away = True


def _print_end(job: Job) -> None:
    line = Text(f"{job.id}  {job.name}  ").append_text(status_text(job.status))
    stdout().print(line.append(f"  {' '.join(job.reason.split())}" if job.reason else ""), soft_wrap=True)
