"""Failures grouped by their cause: one block for each, however many cubins it took."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from cli.output.format import counted
from farm.jobs.model import JobDetail

NAMES_SHOWN = 3
"""Of what failed for one cause."""
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f]{12,}|\d+")
"""Where in the PTX, after how many seconds, with what limit: the cause is the same."""


@dataclass(frozen=True)
class Failed:
    """One cubin that is not there."""

    job: str
    """Its name."""
    layer: str
    arch: str
    name: str
    """As in conv1 sm_90 part 2 of 3."""
    error: str
    command: str


@dataclass(frozen=True)
class Cause:
    """What failed in one way, the first of it first; at least one."""

    failed: tuple[Failed, ...]

    @property
    def error(self) -> str:
        """Of the first."""
        return self.failed[0].error

    @property
    def command(self) -> str:
        """To run the tool of the first failure again; empty if no tool failed."""
        return next((each.command for each in self.failed if each.command), "")

    @property
    def extent(self) -> str:
        """As in 174 cubins of 58 layers for sm_80, sm_90."""
        layers, jobs = len({(each.job, each.layer) for each in self.failed}), len({each.job for each in self.failed})
        of_jobs = f" in {jobs} jobs" if jobs > 1 else ""
        archs = ", ".join(dict.fromkeys(each.arch for each in self.failed))
        return f"{counted(len(self.failed), 'cubin')} of {counted(layers, 'layer')}{of_jobs}, {archs}"


def causes_of(details: Sequence[JobDetail]) -> list[Cause]:
    """Of all failures of some jobs, the most frequent first."""
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
    """For each cause what it is, what failed of it, and how to rerun the first tool."""
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
    """The causes as --json gives them."""
    return [
        {"error": cause.error, "command": cause.command or None, "cubins": [each.name for each in cause.failed]}
        for cause in causes_of([detail])
    ]
