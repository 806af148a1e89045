"""`farm report`: a job or a submission as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.options.jobs import OfSubmission
from cli.output.atomic_file import write_output
from cli.output.console import stdout
from cli.output.format import size
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.api import Farm


def report(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="A job id or a unique prefix of one. Default: latest.", show_default=False),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    submission: OfSubmission = None,
) -> None:
    """Write an HTML page about a job, or the timeline of a submission.

    The page of a job shows its layers' zeros, code, compile and kernel times. It is one file that loads nothing and
    runs no script. Kernel times are measured where a tuning record of this batch size gave the tiling, else predicted
    for the job's GPUs: scaled from an H200 by data sheet. An unfinished job is shown as far as it is.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings

    if job is not None and submission is not None:
        raise UsageError("a job and --submission cannot be combined: give one of them")
    with Farm.open(load_settings()) as farm:
        page = _job_page(farm, job or "latest") if submission is None else _sweep_page(farm, submission)
    data = page.encode(errors="replace")
    write_output(output, data, f"--output {output}")
    stdout().print(Text(f"{output}: {size(len(data))}, open it in a browser"), soft_wrap=True)


def _job_page(farm: Farm, job: str) -> str:
    from cli.report.page import report_page

    return report_page(farm.report(job))


def _sweep_page(farm: Farm, submission: str) -> str:
    from cli.report.sweep import sweep_page

    return sweep_page(farm.sweep_report(submission))
