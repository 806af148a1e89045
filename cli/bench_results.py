"""How what `farm bench` measured is shown: tables or JSON, and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from cli.render import print_json, stderr, stdout
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.bench.results import Results


def show(results: Results, *, as_json: bool, folder: Path | None) -> None:
    """Tables or JSON on stdout; figures in the folder."""
    from cli.bench_tables import tables
    from cli.graphchallenge_tables import challenge_tables
    from cli.network_tables import network_tables

    if as_json:
        print_json(results.to_json())
    else:
        console = stdout()
        console.print(Text(results.title, style="bold"))
        of_kind = challenge_tables if results.of_challenge else network_tables if results.of_networks else tables
        for part in of_kind(results, console.width):
            console.print(part, soft_wrap=results.of_networks or results.of_challenge)
    draw(results, folder)


def draw(results: Results, folder: Path | None) -> None:
    """The figures, if a folder was named for them."""
    if folder is not None:
        if results.of_challenge:
            raise UsageError("the sparse DNN challenge has no figures: its table says it all, and its JSON")
        from farm.bench.plots import plot

        for path in plot(results, folder):
            stderr().print(Text(f"drew {path}"), soft_wrap=True)
