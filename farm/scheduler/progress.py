"""What a coordinator tells while it works; the command line shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.jobs.model import Build, BuildResult, Job
from farm.worker.messages import Request, Retry, TemplateResult

if TYPE_CHECKING:
    from farm.maintenance.gc import Sweep
    from farm.scheduler.eta import Prospect
    from farm.scheduler.plan import Plan


@dataclass(frozen=True)
class Standing:
    """Where a coordinator stands with the jobs that it has, and with those that have ended since it had none."""

    done: int
    """Cubins."""
    total: int
    prospect: Prospect


class Progress:
    """Shows nothing; a subclass overrides what it wants to show.

    Calls come from the thread that runs the jobs; the last four from those that keep the limits and the lease.
    """

    def planned(self, jobs: Sequence[Job], builds: Mapping[int, Build], plan: Plan) -> None:
        """What is to be done for these jobs, builds by their id; nothing was looked up yet."""

    def cut(self, job: Job, build: Build, plan: Plan) -> None:
        """A layer of this job becomes the cubins of this plan instead of one."""

    def submitted(self, request: Request) -> None:
        """A worker has it, or will soon."""

    def retried(self, retry: Retry) -> None:
        """It failed, and is tried again."""

    def template_done(self, result: TemplateResult) -> None:
        """A template is there or has failed; its key is in the plan."""

    def cubin_done(self, job: Job, build: Build, result: BuildResult) -> None:
        """A cubin of a build is there, hit or built, or has failed."""

    def stands(self, standing: Standing) -> None:
        """Where it stands; said about once a second."""

    def job_done(self, job: Job) -> None:
        """A job has reached its final state."""

    def job_lost(self, job: Job) -> None:
        """A job was cancelled, or taken over by another coordinator."""

    def elsewhere(self, job: Job) -> None:
        """Another coordinator runs this job; said once, before waiting for it."""

    def waiting(self, text: str) -> None:
        """No worker can do anything yet; said every so often, with the reason."""

    def lease_troubled(self, reason: str) -> None:
        """The coordinator's claims could not be extended; it is tried again."""

    def jobs_forgotten(self, count: int) -> None:
        """Jobs beyond the ledger's age were forgotten."""

    def garbage_collected(self, sweep: Sweep) -> None:
        """The store was brought below its limits."""

    def upkeep_failed(self, reason: str) -> None:
        """The limits of the store or of the ledger could not be applied."""
