"""One claimed job: what is still to come of it, and what is known of its end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from farm.jobs.model import Build, Job, Status, count_cubins
from farm.scheduler.plan import Target
from farm.worker.messages import Fault


class FailedCubin(NamedTuple):
    """In the order of the network's layers."""

    build: int
    arch: str
    part: int
    fault: Fault
    message: str


@dataclass
class Claim:
    """One job while it runs."""

    job: Job
    builds: dict[int, Build]
    """By their ids."""
    left: int = 0
    """Cubins still to come."""
    began: float | None = None
    """When a worker, or another coordinator, first had something for it."""
    stage: str = ""
    waits: bool = False
    """For a store that is away."""
    template_seconds: dict[str, float] = field(default_factory=dict)
    """What its templates took, by their keys, once they are there: 0 of those that it found."""
    failed: list[FailedCubin] = field(default_factory=list)
    """As they came."""
    running: int = 0
    """As the ledger was told; and when it was told that the job will end, by the clock."""
    ends_at: float = math.inf

    @property
    def total(self) -> int:
        """The layers' parts times architectures."""
        return count_cubins(list(self.builds.values()), self.job.options)

    @property
    def end(self) -> tuple[Status, str, str]:
        """The final state, once nothing is left, the reason in words, and the fault."""
        if not self.failed:
            return Status.SUCCEEDED, "", ""
        failed = sorted(self.failed)  # in the network's order: which ended first says nothing
        faults = [each.fault for each in failed]
        worst = next((fault for fault in (Fault.LOST, *faults) if fault in faults and not fault.of_input), None)
        reason = f"{len(failed)} of {self.total} cubins failed: {failed[0].message}"
        return (Status.CRASHED, reason, worst) if worst else (Status.FAILED, reason, faults[0])

    def cut(self, build_id: int, arch: str) -> Build:
        """A layer is no longer one cubin for an architecture."""
        build = self.builds[build_id]
        build = replace(build, whole=tuple(each for each in build.whole if each != arch))
        self.builds[build_id] = build
        return build

    def cubin_name(self, target: Target) -> str:
        """What people call it."""
        return self.builds[target.build].cubin_name(target.arch, target.part)
