"""What all commands of `farm bench` share: where results go, and how they are shown."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.exit_codes import JOB_FAILED, OK
from cli.options.parse import names_of
from cli.output.render import print_json, stderr, stdout
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.bench.layers.results import Results


JsonTo = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON after every measurement; - for stdout only.")
]
PlotFolder = Annotated[
    Path | None, typer.Option("--plot", metavar="DIR", help="Draw figures (SVG and PNG) into this folder.")
]


def json_file(json_to: str | None) -> Path | None:
    """The file that --json names."""
    return None if json_to in (None, "-") else Path(json_to)


def peers_of(value: str, known: Collection[str]) -> tuple[str, ...]:
    """What --peers names, in the order in which they are known. Raises UsageError."""
    names = {"all": list(known), "none": []}.get(value) or names_of([value])
    if value != "none" and (not names or set(names) - set(known)):
        raise UsageError(f"--peers {value}: it is all, none or some of {', '.join(known)}")
    return tuple(name for name in known if name in names)


def show(results: Results, *, as_json: bool, folder: Path | None) -> int:
    """Tables or JSON on stdout; figures in the folder. Gives the exit code: whether our kernels are right."""
    from cli.output.bench import tables
    from cli.output.graphchallenge import challenge_tables
    from cli.output.networks import network_tables

    if as_json:
        print_json(results.to_json())
    else:
        console = stdout()
        console.print(Text(results.title, style="bold"))
        of_kind = challenge_tables if results.of_challenge else network_tables if results.of_networks else tables
        for part in of_kind(results, console.width):
            console.print(part, soft_wrap=results.of_networks or results.of_challenge)
    draw(results, folder)
    return OK if results.are_right else JOB_FAILED


def draw(results: Results, folder: Path | None) -> None:
    """The figures, if a folder was named for them."""
    if folder is not None:
        if results.of_challenge:
            raise UsageError("the sparse DNN challenge has no figures: its table says it all, and its JSON")
        from farm.bench.layers.plots import plot

        for path in plot(results, folder):
            stderr().print(Text(f"drew {path}"), soft_wrap=True)
