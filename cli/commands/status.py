"""`farm status`: the jobs of the farm."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from cli.options.jobs import OfSubmission
from cli.options.output import AsJson
from cli.options.parse import arch_of
from cli.output.console import print_json, stdout
from cli.output.jobs import counts_line, job_json, job_table
from farm.errors import UsageError
from farm.jobs.model import Job, Status

REFRESH_SECONDS = 0.5
FIXED_LINES = 3
"""Lines of the screen that show no job: counts, heading, and the number of jobs left out."""


def status(
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Refresh until Ctrl-C; shows as many jobs as fit the screen.")
    ] = False,
    as_json: AsJson = False,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only jobs in this state; may be repeated.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="TEXT", help="Only jobs whose model path contains this.")
    ] = None,
    arch: Annotated[str | None, typer.Option("--arch", metavar="ARCH", help="Only jobs for this architecture.")] = None,
    submission: OfSubmission = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="At most this many jobs. Default: 20.")
    ] = None,
    everything: Annotated[bool, typer.Option("-a", "--all", help="All jobs, however many.")] = False,
) -> None:
    """Show jobs, newest first, one line each, below a line of counts per state.

    DONE counts finished cubins without failed ones. CLAIMED: taken by a coordinator, not started; --json has it as
    RUNNING with `claimed` true. The counts cover all jobs of the model, architecture and submission asked for.
    """
    from farm.config.settings import load_settings
    from farm.ledger import Which, open_ledger

    states = _states(state or [])
    of: Which = {"model": model, "arch": arch_of(arch) if arch else None, "submission": submission}
    shown: Which = {**of, "states": states}
    ledger = open_ledger(load_settings())
    if submission is not None:
        ledger.check_submission(submission)

    def look(most: int | None) -> View:
        return View(
            ledger.jobs(limit=most, **shown), ledger.counts(**of), ledger.count_claimed(**of), states, any(of.values())
        )

    if everything and limit is not None:
        raise UsageError("--all and --limit cannot be combined: give one of them")
    most = None if everything else limit or 20
    if as_json and watch:
        raise UsageError("--json prints one document, and --watch goes on: leave one of them out")
    if as_json:
        view = look(most)
        counts = {str(key): value for key, value in view.counts.items()}
        print_json({"counts": counts, "claimed": view.claimed, "jobs": [job_json(job) for job in view.jobs]})
    elif watch:
        _watch(look, most)
    else:
        console = stdout()
        console.print(look(most).shown(console.width), soft_wrap=True)


@dataclass(frozen=True)
class View:
    """Jobs and counts read from the ledger at one moment."""

    jobs: Sequence[Job]
    counts: Mapping[Status, int]
    """Counts of all jobs of that model, architecture and submission, in any state."""
    claimed: int
    states: Sequence[Status] | None
    """The states asked for; None for all."""
    filtered: bool
    """Whether only some jobs were asked for, by model, architecture or submission."""

    @property
    def left_out(self) -> int:
        """Number of matching jobs beyond the limit."""
        return sum(count for status, count in self.counts.items() if not self.states or status in self.states) - len(
            self.jobs
        )

    def shown(self, width: int, height: int | None = None) -> Group:
        """The view as lines of at most `width` columns, and at most `height` lines if given."""
        room = len(self.jobs) if height is None else max(1, height - FIXED_LINES)
        lines: list[Text | Group] = [counts_line(self.counts, self.claimed)]
        if self.jobs:
            lines.append(job_table(self.jobs[:room], width))
        elif self.counts or self.filtered:
            lines.append(Text("no matching jobs: farm status --all shows all"))
        else:
            lines.append(Text("no jobs yet: start with farm compile model.onnx --arch sm_90"))
        if left_out := self.left_out + len(self.jobs[room:]):
            way_on = "--all shows them" if height is None else "a taller terminal"
            lines.append(Text(f"{left_out:,} more: {way_on}", style="dim"))
        return Group(*lines)


def _watch(look: Callable[[int | None], View], most: int | None) -> None:
    """Refresh until Ctrl-C or until the reader of the pipe is gone; the jobs continue."""
    from rich.live import Live

    console = stdout()
    try:
        if not console.is_terminal:
            last = ""
            while not console.reader_gone:
                with console.capture() as captured:
                    console.print(now := look(most).shown(console.width), soft_wrap=True)
                if captured.get() != last:
                    console.print(now, soft_wrap=True)
                    last = captured.get()
                time.sleep(REFRESH_SECONDS)
            return
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(look(most).shown(*console.size), refresh=True)
                time.sleep(REFRESH_SECONDS)
    except KeyboardInterrupt:
        if console.is_terminal:  # the screen of before is back
            console.print(look(most).shown(console.width), soft_wrap=True)


def _states(names: list[str]) -> tuple[Status, ...] | None:
    known = ", ".join(Status)
    states = []
    for name in (part for text in names for part in text.split(",") if part):
        try:
            states.append(Status(name.upper()))
        except ValueError:
            raise UsageError(f"--state {name}: expected one of {known}") from None
    return tuple(states) or None
