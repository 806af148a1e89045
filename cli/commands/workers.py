"""`farm workers`: coordinators, and the workers of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from cli.options.output import AsJson
from cli.output.console import print_json, stdout
from cli.output.format import duration, moment
from cli.output.table import plain_table

if TYPE_CHECKING:
    from farm.ledger import CoordinatorState

NUMBERS = ("cpus", "gpus", "running", "pending", "accepted", "finished", "failed")


def workers(as_json: AsJson = False) -> None:
    """Show coordinators and workers, with their running and finished builds."""
    from farm.config.settings import load_settings
    from farm.ledger import open_ledger

    ledger = open_ledger(load_settings())
    coordinators = ledger.coordinators.all()
    ledger.close()
    if as_json:
        print_json({"coordinators": [_json(each) for each in coordinators]})
        return
    console = stdout()
    if not coordinators:
        console.print("no coordinator is alive: farm serve starts one")
        return
    console.print(_coordinators(coordinators, console.width))
    if any(each.workers for each in coordinators):
        console.print()
        console.print(_workers(coordinators, console.width))


def _coordinators(coordinators: Sequence[CoordinatorState], width: int) -> Table:
    now = datetime.now(UTC)
    table = plain_table(width)
    for name in ("COORDINATOR", "NODE", "KIND", "SINCE", "JOBS", "SEEN", "STATE"):
        table.add_column(name, overflow="fold", justify="right" if name in ("JOBS", "SEEN") else "left")
    for each in coordinators:
        table.add_row(
            each.id.rpartition("-")[2],
            each.node,
            "serve" if each.serves else "compile",
            moment(each.since, now),
            str(each.jobs),
            duration(each.seen_seconds),
            Text("alive", style="green") if each.alive else Text("gone", style="red"),
        )
    return table


def _workers(coordinators: Sequence[CoordinatorState], width: int) -> Table:
    table = plain_table(width)
    for name in ("WORKER", "NODE", *(name.upper() for name in NUMBERS), "OLDEST", "SEEN"):
        table.add_column(name, overflow="fold", justify="left" if name in ("WORKER", "NODE") else "right")
    for each in coordinators:
        for worker in each.workers:
            seen = each.seen_seconds + worker["seen_seconds"]
            oldest = duration(worker["oldest_seconds"]) if worker["running"] or worker["pending"] else "-"
            numbers = (str(worker[name]) for name in NUMBERS)
            table.add_row(worker["id"][:8], worker["node"], *numbers, oldest, duration(seen))
            if worker["reason"]:
                table.add_row("", Text(worker["reason"], style="yellow"))
    return table


def _json(coordinator: CoordinatorState) -> dict[str, Any]:
    return {
        **asdict(coordinator),
        "since": coordinator.since.isoformat(),
        "seen": coordinator.seen.isoformat(),
        "workers": [dict(worker) for worker in coordinator.workers],
    }
