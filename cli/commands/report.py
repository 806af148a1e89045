"""`farm report`: a job or a submission as an HTML page, and a sweep as a CSV file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

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
    submission: Annotated[
        str | None,
        typer.Option(
            "--submission", "--sweep", metavar="ID", help="All jobs of one submission, by the id that it was given."
        ),
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write the sweep's checkpoints as a CSV file.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="FILE", help="Your figures of the checkpoints, a CSV file such as name,accuracy."
        ),
    ] = None,
) -> None:
    """Write an HTML page about a job, or about the checkpoints and the timeline of a submission.

    The page of a job shows its layers' zeros, code, compile and kernel times. It is one file that loads nothing and
    runs no script. Kernel times are measured where a tuning record of this batch size gave the tiling, else predicted
    for the job's GPUs: scaled from an H200 by data sheet. An unfinished job is shown as far as it is.

    With --sweep the page plots code size, compile time and predicted time of each checkpoint against its sparsity. The
    file of --measured adds its columns, such as accuracy; its column `name` has a job's name or id, and a column `arch`
    is for figures that differ by GPU.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings

    if job is not None and submission is not None:
        raise UsageError("a job and --submission cannot be combined: give one of them")
    if submission is None and (table or measured):
        raise UsageError("--csv and --measured are for the checkpoints of a sweep: add --sweep ID")
    with Farm.open(load_settings()) as farm:
        if submission is None:
            _write(output, _job_page(farm, job or "latest"), "--output")
        else:
            _write_sweep(farm, submission, output, table, measured)


def _write(path: Path, text: str, option: str) -> None:
    data = text.encode(errors="replace")
    write_output(path, data, f"{option} {path}")
    way_on = ", open it in a browser" if option == "--output" else ""
    stdout().print(Text(f"{path}: {size(len(data))}{way_on}"), soft_wrap=True)


def _job_page(farm: Farm, job: str) -> str:
    from cli.report.job_page import report_page

    return report_page(farm.report(job))


def _write_sweep(farm: Farm, submission: str, output: Path, table: Path | None, measured: Path | None) -> None:
    from cli.report.measured import NOTHING, read_measured
    from cli.report.sweep import sweep_page
    from cli.report.sweep_table import check_measured, sweep_csv

    figures = read_measured(measured) if measured else NOTHING
    report = farm.sweep_report(submission)
    check_measured(report.points, figures)
    _write(output, sweep_page(report, figures), "--output")
    if table is not None:
        _write(table, sweep_csv(report.points, figures), "--csv")
