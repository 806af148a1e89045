"""`farm report`: a job as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cli.render import size, stdout
from farm.errors import UsageError


def report(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job id, a unique prefix of one, or latest.")] = "latest",
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The HTML file to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write a job as one HTML page: zeros, deleted instructions, code, compile time and kernel time of each layer."""
    from cli.report_page import report_page
    from farm.api import Farm
    from farm.settings import load_settings

    with Farm.open(load_settings()) as farm:
        page = report_page(farm.report(job)).encode(errors="replace")
    try:
        output.write_bytes(page)
    except OSError as error:
        raise UsageError(f"--output {output}: it cannot be written ({error.strerror}): name another file") from None
    stdout().print(Text(f"{output}: {size(len(page))}, open it in a browser"), soft_wrap=True)
