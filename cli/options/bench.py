"""Options that the commands of `farm bench` share: where results go, and what is compared."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from cli.options.parse import names_of
from farm.errors import UsageError

JsonTo = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON after every measurement; - for stdout only.")
]
PlotFolder = Annotated[
    Path | None, typer.Option("--plot", metavar="DIR", help="Draw figures (SVG and PNG) into this folder.")
]


def json_file(json_to: str | None) -> Path | None:
    """The file that --json names; None for stdout."""
    return None if json_to in (None, "-") else Path(json_to)


def peers_of(value: str, known: Collection[str]) -> tuple[str, ...]:
    """The peers that --peers names, in the order of `known`. Raises UsageError."""
    names = {"all": list(known), "none": []}.get(value) or names_of([value])
    if value != "none" and (not names or set(names) - set(known)):
        raise UsageError(f"--peers {value}: unknown peer: expected all, none or some of {', '.join(known)}")
    return tuple(name for name in known if name in names)
