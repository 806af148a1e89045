"""Options that say what a command prints."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
PriceText = Annotated[
    str | None,
    typer.Option(
        "--price", metavar="PRICE", help="Price of a core, such as 0.04/core-hour; shows costs. Default: FARM_PRICE."
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Show no progress.")]
