"""`farm logs`: what happened in a job."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.render import moment, stdout

if TYPE_CHECKING:
    from farm.api import Farm
    from farm.jobs import Job

POLL_SECONDS = 0.5
LEVEL_STYLES = {"error": "red", "warning": "yellow"}


def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's id, the beginning of one, or latest.")] = "latest",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job ends.")] = False,
) -> None:
    """Print a job's log: templates, failures with the tool's words, the command to run again."""
    from farm.api import Farm
    from farm.settings import load_settings

    with Farm.open(load_settings()) as farm:
        found = farm.job(job)
        with suppress(KeyboardInterrupt):  # following ends, the job goes on
            _print_events(farm, found, follow=follow)


def _print_events(farm: Farm, job: Job, *, follow: bool) -> None:
    console = stdout()
    last = 0
    while True:
        ended = job.status.final
        for event in farm.logs(job.id, last):
            last = event.id
            line = f"{moment(event.at, datetime.now(UTC))}  {event.level:<7}  {event.text}"
            console.print(Text(line, style=LEVEL_STYLES.get(event.level, "")), soft_wrap=True)
        if ended or not follow:
            return
        time.sleep(POLL_SECONDS)
        job = farm.job(job.id)
