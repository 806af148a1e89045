"""Reader: what people ask of the store and the ledger, one method for each."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Unpack

from farm.jobs.model import Event, Job, JobDetail, Status
from farm.ledger import CoordinatorState, Ledger, Statistics, Which
from farm.reports.explanation import Explanation, explain
from farm.reports.job_report import JobReport, job_report
from farm.reports.sweep_report import SweepReport
from farm.store.contract import Store
from farm.tuning.files import shipped_records

if TYPE_CHECKING:
    from farm.reports.metrics import MetricsServer


class Reader:
    """A store and a ledger that are asked; the part of Farm that changes nothing."""

    _store: Store
    _ledger: Ledger

    def coordinators(self) -> list[CoordinatorState]:
        """Those alive and those that died of late, oldest first."""
        return self._ledger.coordinators.all()

    def is_served(self) -> bool:
        """Whether a `farm serve` is alive, which takes whatever is pending."""
        return self._ledger.coordinators.any_serves()

    def jobs(self, *, limit: int | None = None, **which: Unpack[Which]) -> list[Job]:
        """Newest first."""
        return self._ledger.jobs(limit=limit, **which)

    def counts(self) -> dict[Status, int]:
        """How many jobs are in each state."""
        return self._ledger.counts()

    def job(self, job_id: str) -> Job:
        """By a unique prefix of its id, or "latest". Raises NotFoundError and UsageError."""
        return self._ledger.job(job_id)

    def jobs_by_id(self, ids: Collection[str]) -> list[Job]:
        """Those of the jobs that there are, by their whole ids, oldest first."""
        return sorted(self._ledger.jobs_by_id(ids).values(), key=lambda job: (job.submitted_at, job.id))

    def check_submission(self, submission: str) -> None:
        """Raises NotFoundError if there is no such submission."""
        self._ledger.check_submission(submission)

    def inspect(self, job_id: str) -> JobDetail:
        """A job with its layers and cubins."""
        job = self.job(job_id)
        return JobDetail(job, tuple(self._ledger.builds(job.id)), tuple(self._ledger.results(job.id)))

    def report(self, job_id: str) -> JobReport:
        """A job's layers with their zeros, code and kernel times."""
        return job_report(self.inspect(job_id), self._ledger, self._store, shipped_records())

    def sweep_report(self, submission: str) -> SweepReport:
        """How the jobs of a submission were worked on. Raises NotFoundError."""
        self.check_submission(submission)
        jobs = self.jobs(submission=submission)[::-1]
        return SweepReport(submission, tuple(jobs), tuple(self._ledger.timeline.runs(submission)), datetime.now(UTC))

    def logs(self, job_id: str, after_id: int = 0) -> list[Event]:
        """What happened, oldest first, after the event with that id."""
        return self._ledger.events(self.job(job_id).id, after_id)

    def explain(self, build: str) -> tuple[Job, list[Explanation]]:
        """Why a build, JOB/LAYER or JOB/LAYER/ARCH, was a hit or not. Raises NotFoundError, UnfinishedError."""
        job_id, _, what = build.partition("/")
        detail = self.inspect(job_id)
        return detail.job, explain(self._ledger, detail.job, detail.builds, detail.results, what)

    def statistics(self) -> Statistics:
        """What the cache saved, since it was last set to zero."""
        return self._ledger.statistics.read()

    def metrics(self, port: int, host: str = "127.0.0.1") -> MetricsServer:
        """Serves Prometheus while it is in a `with` block. Raises UsageError, UnreachableError."""
        from farm.reports.metrics import MetricsServer  # a web server, which few commands need

        return MetricsServer(self._ledger, port, host)
