"""Results of `farm bench`, as tables, JSON or figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from cli.exit_codes import JOB_FAILED, OK
from cli.output.console import print_json, stderr, stdout
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.bench.layers.results import Results


def show(results: Results, *, as_json: bool, folder: Path | None) -> int:
    """Print tables or JSON, draw figures into the folder, and give the exit code: whether our kernels are right."""
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
    """Draw the figures into the folder; nothing without one. Raises UsageError."""
    if folder is not None:
        if results.of_challenge:
            raise UsageError("--plot: graphchallenge results have no figures: use the table or --json")
        from farm.bench.layers.plots import plot

        for path in plot(results, folder):
            stderr().print(Text(f"drew {path}"), soft_wrap=True)
