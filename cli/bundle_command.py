"""`farm fetch`: a job's cubins and their manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cli.render import counted, stdout


def fetch(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job id, a unique prefix of one, or latest.")] = "latest",
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.")] = Path(
        "bundle"
    ),
) -> None:
    """Copy a job's bundle: cubins per layer and architecture, and manifest.json that says how to launch them."""
    from farm.api import Farm
    from farm.settings import load_settings

    with Farm.open(load_settings()) as farm:
        manifest = farm.fetch(job, output)
    cubins = sum(1 for _ in output.rglob("*.cubin"))
    stdout().print(Text(f"{manifest}: {counted(cubins, 'cubin')}"), soft_wrap=True)
