"""Progress events of a coordinator, which the command line shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.jobs.model import Build, BuildResult, Job
from farm.worker.messages import Request, Retry, TemplateResult

if TYPE_CHECKING:
    from farm.maintenance.gc import Sweep
    from farm.scheduler.eta import Estimate
    from farm.scheduler.plan import Plan


@dataclass(frozen=True)
class RunStatus:
    """Progress of a coordinator's jobs, including those that have ended since it last had none."""

    done: int
    """Finished cubins."""
    total: int
    """All cubins."""
    estimate: Estimate
    core_wait: str = ""
    """Processes on the cores that this machine's tools wait for; empty if no tool waits."""


class Progress:
    """Receiver of progress events; every method does nothing until a subclass overrides it.

    The coordinator's thread calls them, except the last four: those come from the threads of maintenance and lease.
    """

    def planned(self, jobs: Sequence[Job], builds: Mapping[int, Build], plan: Plan) -> None:
        """Jobs were planned, before any cache lookup; builds are by their id."""

    def cut(self, job: Job, build: Build, plan: Plan) -> None:
        """A layer was split: instead of one cubin it gets the cubins of this plan."""

    def submitted(self, request: Request) -> None:
        """A request was given to the executor."""

    def retried(self, retry: Retry) -> None:
        """A request failed and will be retried."""

    def repaired(self, name: str, warning: str) -> None:
        """A stored template or cubin was unusable, with the reason, and was built again."""

    def template_done(self, result: TemplateResult) -> None:
        """A template of the plan is there or has failed."""

    def cubin_done(self, job: Job, build: Build, result: BuildResult) -> None:
        """A cubin is there (hit or built) or has failed."""

    def status_changed(self, status: RunStatus) -> None:
        """The status changed; called about once a second."""

    def job_done(self, job: Job) -> None:
        """A job reached its final state."""

    def job_lost(self, job: Job) -> None:
        """A job was cancelled or taken over by another coordinator."""

    def elsewhere(self, job: Job) -> None:
        """Another coordinator runs this job, which is waited for; called once per job."""

    def waiting(self, text: str) -> None:
        """No worker is available yet, with the reason; repeated while waiting."""

    def lease_troubled(self, reason: str) -> None:
        """The lease could not be extended, with the reason; extending is retried."""

    def jobs_pruned(self, count: int) -> None:
        """The ledger's retention pruned jobs."""

    def garbage_collected(self, sweep: Sweep) -> None:
        """Garbage collection brought the store below its limits."""

    def maintenance_failed(self, reason: str) -> None:
        """Garbage collection or retention failed, with the reason."""
