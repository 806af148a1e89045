"""One claimed job: what is still to come of it, and what is known of its end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from farm.coordination.plan import Target
from farm.jobs import Build, Job, Status, count_cubins
from farm.worker.requests import Fault


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
    faults: list[Fault] = field(default_factory=list)
    failures: list[tuple[int, str, int, str]] = field(default_factory=list)
    """Build, architecture, part, and what is said of it; the reason names the first in this order, not in time."""
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
        if not self.faults:
            return Status.SUCCEEDED, "", ""
        worst = next(
            (fault for fault in (Fault.LOST, *self.faults) if fault in self.faults and not fault.of_input), None
        )
        reason = f"{len(self.faults)} of {self.total} cubins failed: {min(self.failures)[-1]}"
        return (Status.CRASHED, reason, worst) if worst else (Status.FAILED, reason, self.faults[0])

    def cut(self, build_id: int, arch: str) -> Build:
        """A layer is no longer one cubin for an architecture."""
        build = self.builds[build_id]
        build = replace(build, whole=tuple(each for each in build.whole if each != arch))
        self.builds[build_id] = build
        return build

    def cubin_name(self, target: Target) -> str:
        """What people call it."""
        return self.builds[target.build].cubin_name(target.arch, target.part)
