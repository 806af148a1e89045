"""`farm logs`: what happened in a job."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from cli.render import moment, stdout

POLL_SECONDS = 0.5
LEVEL_STYLES = {"error": "red", "warning": "yellow"}


def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's id, the beginning of one, or latest.")] = "latest",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job ends.")] = False,
) -> None:
    """Print a job's log: templates, failures with the tool's words, the command to run again."""
    from farm.api import Farm
    from farm.settings import load_settings

    console = stdout()
    with Farm.open(load_settings()) as farm:
        found = farm.job(job)
        last = 0
        while True:
            ended = found.status.final
            for event in farm.logs(found.id, last):
                last = event.id
                line = f"{moment(event.at, datetime.now(UTC))}  {event.level:<7}  {event.text}"
                console.print(Text(line, style=LEVEL_STYLES.get(event.level, "")), soft_wrap=True)
            if ended or not follow:
                return
            time.sleep(POLL_SECONDS)
            found = farm.job(found.id)
