"""Progress of `farm compile` without a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from cli.progress.compile import CompileProgress
from farm.scheduler.eta import Estimate
from farm.scheduler.progress import RunStatus

NOTHING_KNOWN = Estimate({}, 0.0, None, {})


def test_a_wait_for_a_core_is_one_line_while_it_lasts() -> None:
    console = Console(file=io.StringIO(), width=80)
    with CompileProgress(console) as progress:
        for holder in (12, 34):
            progress.status_changed(RunStatus(0, 1, NOTHING_KNOWN, f"waiting for a core held by process {holder}"))
        progress.status_changed(RunStatus(0, 1, NOTHING_KNOWN))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "waiting for a core held by process 12\n"
