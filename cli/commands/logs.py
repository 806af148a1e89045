"""`farm logs`: the events of a job."""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.exit_codes import INTERRUPTED, OK, exit_code_of_job
from cli.options.jobs import OneJob
from cli.output.console import StreamConsole, print_warning, stderr, stdout
from cli.output.format import date_and_time
from cli.progress.eta import EVERY_SECONDS, job_eta_line
from farm.jobs.model import Status

if TYPE_CHECKING:
    from farm.api import Farm
    from farm.jobs.model import Job

POLL_SECONDS = 0.5
LEVEL_STYLES = {"error": "red", "warning": "yellow"}


def logs(
    job: OneJob = "latest",
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Follow until the job ends; the exit code says how.")
    ] = False,
) -> int:
    """Print a job's log: templates, failures with the tool's output, the command to rerun.

    With --follow it waits for a database that is away. Ctrl-C stops following, not the job.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings

    with Farm.open(load_settings()) as farm:
        found = farm.job(job)
        console = stdout()
        if not follow:
            if not _print_new(farm, found, console, 0):
                print_warning(
                    f"job {found.id} is {found.status} and has no events{'' if found.status.final else ' yet'}"
                )
            return OK
        try:
            return exit_code_of_job(_follow(farm, found, console))
        except KeyboardInterrupt:  # stops following, not the job
            return INTERRUPTED


def _follow(farm: Farm, job: Job, console: StreamConsole) -> Job:
    """Print events, and the progress now and then, until the job has ended; wait for a database that is away."""
    from farm.errors import LedgerAwayError

    last, told, stood_at = 0, False, monotonic()
    while True:
        try:
            job = farm.job(job.id)  # before its events, so that those of its end are among them
            last = _print_new(farm, job, console, last)
            if job.status is Status.RUNNING and job.started_at and monotonic() - stood_at >= EVERY_SECONDS:
                stood_at = monotonic()
                _print_line(console, datetime.now(UTC), "info", job_eta_line(job, datetime.now(UTC)))
            told = False
            if job.status.final or console.reader_gone:
                return job
        except LedgerAwayError as error:
            if not told:
                stderr().print(Text(f"farm: {error}; waiting", style="yellow"), soft_wrap=True)
            told = True
        sleep(POLL_SECONDS)


def _print_new(farm: Farm, job: Job, console: StreamConsole, last: int) -> int:
    """Print the events after the one with id `last`; return the id of the newest."""
    for event in farm.logs(job.id, last):
        last = event.id
        _print_line(console, event.at, event.level, event.text)
    return last


def _print_line(console: StreamConsole, at: datetime, level: str, text: str) -> None:
    """Print an event; further lines of its text, such as a tool's output, are indented: none can pass for an event."""
    first, *further = text.splitlines() or [""]
    for line in (f"{date_and_time(at)}  {level:<7}  {first}", *(f"    {each}" for each in further)):
        console.print(Text(line, style=LEVEL_STYLES.get(level, "")), soft_wrap=True)
