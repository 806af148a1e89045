"""`farm status`: what the farm does and did."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType

from cli.options import arch_of
from cli.render import counts_line, job_json, job_table, print_json, stdout
from farm.errors import UsageError
from farm.jobs import Status

REFRESH_SECONDS = 0.5


def status(
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Refresh until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only jobs in this state; may be repeated.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="TEXT", help="Only jobs whose model path contains this.")
    ] = None,
    arch: Annotated[str | None, typer.Option("--arch", metavar="ARCH", help="Only jobs for this architecture.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", metavar="N", min=1, help="At most this many jobs.")] = 20,
    everything: Annotated[bool, typer.Option("-a", "--all", help="All jobs, however many.")] = False,
) -> None:
    """Show jobs, newest first, with a line of counts per state."""
    from farm.ledger import open_ledger
    from farm.settings import load_settings

    states = _states(state or [])
    arch = arch_of(arch) if arch else None
    ledger = open_ledger(load_settings())
    most = None if everything else limit

    def render(console: Console) -> RenderableType:
        jobs = ledger.jobs(states=states, model=model, arch=arch, limit=most)
        counts = ledger.counts()
        nothing = (
            "none of these jobs is what you asked for: farm status --all shows all"
            if counts
            else "no jobs: farm compile model.onnx --arch sm_90 makes one"
        )
        return Group(counts_line(counts), job_table(jobs, console.width) if jobs else nothing)

    if as_json:
        jobs = ledger.jobs(states=states, model=model, arch=arch, limit=most)
        counts = {str(key): value for key, value in ledger.counts().items()}
        print_json({"counts": counts, "jobs": [job_json(job) for job in jobs]})
        return
    console = stdout()
    if not watch:
        console.print(render(console))
        return
    from rich.live import Live

    try:
        with Live(render(console), console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                live.update(render(console), refresh=True)
                time.sleep(REFRESH_SECONDS)
    except KeyboardInterrupt:
        # Watching ends, the jobs go on.
        console.print(render(console))


def _states(names: list[str]) -> tuple[Status, ...] | None:
    known = ", ".join(Status)
    states = []
    for name in (part for text in names for part in text.split(",") if part):
        try:
            states.append(Status(name.upper()))
        except ValueError:
            raise UsageError(f"--state {name}: not a state; the states are {known}") from None
    return tuple(states) or None
