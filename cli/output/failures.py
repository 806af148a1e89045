"""Failures grouped by cause: one block for each, with a count of its cubins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from farm.config.units import counted
from farm.jobs.model import JobDetail

NAMES_SHOWN = 3
"""Cubins that are named for each cause."""
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f]{12,}|\d+")
"""Numbers and addresses in messages: errors that differ only in them have the same cause."""


@dataclass(frozen=True)
class Failed:
    """A cubin that was not built."""

    job: str
    """The job's name."""
    layer: str
    arch: str
    name: str
    """The cubin's name, as in conv1 sm_90 part 2 of 3."""
    error: str
    command: str


@dataclass(frozen=True)
class Cause:
    """Failures with the same cause, in the order of the job; at least one."""

    failed: tuple[Failed, ...]

    @property
    def error(self) -> str:
        """Message of the first failure."""
        return self.failed[0].error

    @property
    def command(self) -> str:
        """Command that reruns the tool of the first failure; empty if no tool failed."""
        return next((each.command for each in self.failed if each.command), "")

    @property
    def extent(self) -> str:
        """The number of cubins and layers, as in 174 cubins of 58 layers, sm_80, sm_90."""
        layers, jobs = len({(each.job, each.layer) for each in self.failed}), len({each.job for each in self.failed})
        of_jobs = f" in {jobs} jobs" if jobs > 1 else ""
        archs = ", ".join(dict.fromkeys(each.arch for each in self.failed))
        return f"{counted(len(self.failed), 'cubin')} of {counted(layers, 'layer')}{of_jobs}, {archs}"


def causes_of(details: Sequence[JobDetail]) -> list[Cause]:
    """The causes of all failures of some jobs, most frequent first."""
    causes: dict[str, list[Failed]] = {}
    for detail in details:
        for build in detail.builds:
            for result in detail.results_of(build):
                if result.error:
                    name = build.cubin_name(result.arch, result.part)
                    failed = Failed(detail.job.name, build.layer, result.arch, name, result.error, result.command)
                    causes.setdefault(_VARIABLE.sub("#", result.error), []).append(failed)
    return sorted((Cause(tuple(failed)) for failed in causes.values()), key=lambda cause: -len(cause.failed))


def failure_lines(details: Sequence[JobDetail]) -> list[Text]:
    """Lines for each cause: the error, the cubins, and the command that reruns the first tool."""
    lines = []
    several = len(details) > 1
    for cause in causes_of(details):
        names = [f"{each.job} {each.name}" if several else each.name for each in cause.failed[:NAMES_SHOWN]]
        if more := len(cause.failed) - len(names):
            names.append(f"{more:,} more")
        lines.append(Text(f"failed: {cause.error}", style="red"))
        head = f"{cause.extent}: " if len(cause.failed) > 1 else ""
        lines.append(Text(f"  {head}{', '.join(names)}", style="red"))
        if cause.command:
            lines.append(Text(f"  rerun: {cause.command}", style="dim"))
    return lines


def failures_json(detail: JobDetail) -> list[dict[str, Any]]:
    """The causes of a job's failures as JSON."""
    return [
        {"error": cause.error, "command": cause.command or None, "cubins": [each.name for each in cause.failed]}
        for cause in causes_of([detail])
    ]
