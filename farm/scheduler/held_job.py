"""A job that this coordinator holds: its builds, progress and failures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from farm.config.units import counted
from farm.jobs.model import Build, Job, Status, count_cubins
from farm.scheduler.plan import Target
from farm.scheduler.traces import JobTimes
from farm.worker.messages import Fault


class FailedCubin(NamedTuple):
    """A failed cubin; sorts in the order of the network's layers."""

    build: int
    arch: str
    part: int
    fault: Fault
    message: str


@dataclass
class HeldJob:
    """A job from claim to end."""

    job: Job
    builds: dict[int, Build]
    """Builds by id."""
    planned: bool = False
    left: int = 0
    """Unfinished cubins."""
    began: float | None = None
    """Time at which the first of its tasks started, here or on another coordinator."""
    stage: str = ""
    """Stage recorded in the ledger: template or assemble."""
    waits: str = ""
    """Reason for waiting, as recorded in the ledger: an unreachable store, or no free core."""
    template_seconds: dict[str, float] = field(default_factory=dict)
    """Build time of each finished template by key; 0 for a cache hit."""
    failed: list[FailedCubin] = field(default_factory=list)
    """Failed cubins in order of arrival."""
    running: int = 0
    """Number of running requests, as last recorded in the ledger."""
    times: JobTimes = field(default_factory=JobTimes)
    """Stages of the job, for its trace."""
    ends_at: float = math.inf
    """Estimated end by the clock, as last recorded in the ledger."""

    @property
    def total(self) -> int:
        """Number of cubins: parts of all layers, for each architecture."""
        return count_cubins(list(self.builds.values()), self.job.options)

    @property
    def end(self) -> tuple[Status, str, str]:
        """Final status, reason and fault of a job whose cubins are all finished."""
        if not self.failed:
            return Status.SUCCEEDED, "", ""
        failed = sorted(self.failed)  # network order is stable, order of arrival is not
        faults = [each.fault for each in failed]
        worst = next((fault for fault in (Fault.LOST, *faults) if fault in faults and not fault.of_input), None)
        reason = f"{len(failed)} of {counted(self.total, 'cubin')} failed: {failed[0].message}"
        return (Status.CRASHED, reason, worst) if worst else (Status.FAILED, reason, faults[0])

    def cut(self, build_id: int, arch: str) -> Build:
        """Split a layer into its parts for an architecture; returns the changed build."""
        build = self.builds[build_id]
        build = replace(build, whole=tuple(each for each in build.whole if each != arch))
        self.builds[build_id] = build
        return build

    def cubin_name(self, target: Target) -> str:
        """Display name of a target's cubin."""
        return self.builds[target.build].cubin_name(target.arch, target.part)
