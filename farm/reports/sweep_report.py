"""Report of a submission: its checkpoints compared, and the work on them over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from farm.jobs.model import Job, Outcome
from farm.ledger import TimedRun
from farm.reports.sweep_points import SweepPoint


@dataclass(frozen=True)
class SweepReport:
    """Jobs of a submission and the tool runs for them."""

    submission: str
    jobs: tuple[Job, ...]
    """One or more jobs, in the order of submission."""
    runs: tuple[TimedRun, ...]
    """Tool runs, in the order of their ends."""
    now: datetime
    """End of the time axis for unfinished jobs."""
    points: tuple[SweepPoint, ...] = ()
    """The jobs that succeeded, by architecture."""

    @cached_property
    def begin(self) -> datetime:
        """Time of the first submission."""
        return min(job.submitted_at for job in self.jobs)

    @cached_property
    def end(self) -> datetime:
        """End of the last job, or now; always after the begin."""
        ends = max(job.finished_at or self.now for job in self.jobs)
        return max([ends, self.begin + timedelta(milliseconds=1), *(run.ended_at for run in self.runs)])

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()

    def seconds_at(self, moment: datetime) -> float:
        """Seconds from the begin."""
        return (moment - self.begin).total_seconds()

    def of_job(self, job: Job) -> list[TimedRun]:
        """Tool runs for a job."""
        return self._by_job.get(job.id, [])

    @cached_property
    def _by_job(self) -> dict[str, list[TimedRun]]:
        by_job: dict[str, list[TimedRun]] = {}
        for run in self.runs:
            by_job.setdefault(run.job, []).append(run)
        return by_job

    def at_work(self, runs: Iterable[TimedRun], bins: int) -> NDArray[np.float64]:
        """Average number of concurrent tools in each of `bins` equal time intervals, [2, bins]: nvcc, then ptxas with
        the rewriter."""
        width = self.seconds / bins
        edges = np.arange(bins + 1) * width
        found = np.zeros((2, bins))
        for run in runs:
            if run.outcome is Outcome.HIT:
                continue
            end = self.seconds_at(run.ended_at)
            inside = np.minimum(edges[1:], end) - np.maximum(edges[:-1], end - run.seconds)
            found[0 if run.is_template else 1] += np.maximum(inside, 0.0) / width
        return found
