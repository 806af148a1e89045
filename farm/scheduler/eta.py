"""Estimated time of arrival of each job, from predicted tool times and the times that this coordinator has measured."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from farm.ledger.running import Outlook
from farm.scheduler.clock import Clock
from farm.scheduler.run import CubinDone, Event, TemplateDone
from farm.scheduler.task import TO_BUILD, State, Task
from farm.scheduler.task_graph import TaskGraph
from farm.worker.messages import CubinFacts, CubinRequest, Request

REQUEST_SECONDS = 0.05
"""Overhead of a request besides its tool: reading, rewriting, store access, transfer to and from a worker."""
MEMORY_SECONDS = 300.0
"""Time constant of the exponential decay of old measurements, since the load of a machine changes."""
KNOWN_SHARE = 0.03
"""Share of the work that must be done, besides one run of ptxas, before an end is predicted."""
URGENT_SHARE = 0.9
"""A task that takes this share of the remaining time starts next: started last, it would delay the end."""
PRIOR_SECONDS = 0.5
"""Weight of the initial assumption, as seconds of predicted work."""
LEFT_OF_LATE = 0.1
"""Least remaining share of the expected time of a task that runs."""


@dataclass(frozen=True)
class Estimate:
    """Remaining work of all held jobs."""

    running: Mapping[str, float]
    """Seconds that a tool has been running, by the key of its request."""
    share: float
    """Finished share of the predicted work, 0 to 1."""
    left_seconds: float | None
    """Time until all held jobs end; None while too little is measured."""
    of_jobs: Mapping[str, Outlook]
    """The estimate of each job, by job id."""


class _Tool:
    """Measured against predicted times of one tool."""

    def __init__(self) -> None:
        self._predicted = self._taken = 0.0

    def learn(self, predicted: float, taken: float) -> None:
        keep = math.exp(-predicted / MEMORY_SECONDS)
        self._predicted = keep * self._predicted + predicted
        self._taken = keep * self._taken + taken

    @property
    def known(self) -> bool:
        return self._predicted > 0

    def ratio(self, otherwise: float, late: Collection[tuple[float, float]] = ()) -> float:
        """Measured per predicted time.

        `otherwise` is the assumption without measurements; `late` has predicted and elapsed time of overdue runs.
        """
        predicted = PRIOR_SECONDS + self._predicted + sum(each for each, _ in late)
        return (PRIOR_SECONDS * otherwise + self._taken + sum(each for _, each in late)) / predicted


class EtaEstimator:
    """Estimates the end of the jobs of one run: learns the tools' times and how well the slots are used."""

    def __init__(self, tasks: TaskGraph, clock: Clock) -> None:
        self._tasks = tasks
        self._clock = clock
        self._nvcc, self._ptxas = _Tool(), _Tool()
        self._ratios = 1.0, 1.0
        """Measured per predicted time of nvcc and of ptxas."""
        self._observed_at: float | None = None
        self._slots = 1
        """Largest number of requests that ran at once since the run was last idle."""
        self._work = 0.0
        """Seconds of finished work since the run was last idle."""
        self._recent_work = 0.0
        self._recent_seconds = 0.0
        """Slot-seconds in which the recent work was done, without slots that had nothing to do."""
        self._usable = 0
        """Slots that had something to do since the last observation."""

    def expected_seconds(self, request: Request) -> float:
        """Expected duration of a request."""
        return REQUEST_SECONDS + self._ratios[isinstance(request, CubinRequest)] * request.seconds

    def _compare(self, now: float) -> None:
        """Update the ratios. Overdue runs count too, and a tool without measurements takes the other tool's ratio."""
        late: tuple[list[tuple[float, float]], list[tuple[float, float]]] = [], []
        for task in self._tasks.in_state(State.IN_FLIGHT):
            taken = 0.0 if task.runs_since is None else now - task.runs_since
            if taken > self.expected_seconds(task.request):
                late[isinstance(task.request, CubinRequest)].append((task.request.seconds, taken))
        nvcc = self._nvcc.ratio(self._ptxas.ratio(1.0), late[0])
        self._ratios = nvcc, self._ptxas.ratio(nvcc, late[1])

    def observe(self, events: Iterable[Event], running: Collection[str]) -> None:
        """Learn from the events of a step, and from the keys of the requests that run after it."""
        now = self._clock.now()
        if self._observed_at is not None:
            passed = now - self._observed_at
            keep = math.exp(-passed / MEMORY_SECONDS)
            self._recent_seconds = keep * self._recent_seconds + passed * self._usable
            self._recent_work *= keep
        for event in events:
            self._learn(event)
        flying = {task.key: task for task in self._tasks.in_state(State.IN_FLIGHT)}
        for key in running:
            if (task := flying.get(key)) is not None and task.runs_since is None:
                task.runs_since = now
        self._slots = max(self._slots, len(running))
        self._usable = min(self._slots, len(flying) + self._tasks.count(State.READY))
        self._observed_at = now if flying else None
        if not self._tasks.busy:
            self._slots, self._usable, self._work, self._recent_work, self._recent_seconds = 1, 0, 0.0, 0.0, 0.0

    def _learn(self, event: Event) -> None:
        taken = 0.0
        if isinstance(event, TemplateDone) and event.result.failure is None and not event.result.hit:
            taken = event.result.seconds
            self._nvcc.learn(event.request.seconds, taken)
        elif isinstance(event, CubinDone) and isinstance(event.result.made, CubinFacts) and not event.result.hit:
            taken = event.result.made.rewrite_seconds + event.result.made.ptxas_seconds
            fell_back = event.result.made.assembler != event.request.assembler
            if not event.result.instead_of and not fell_back:
                self._ptxas.learn(event.request.seconds, taken)
        if taken:
            self._work += taken + REQUEST_SECONDS
            self._recent_work += taken + REQUEST_SECONDS

    def estimate(self, job_ids: Collection[str]) -> Estimate:
        """Estimate the remaining time of jobs; expedites ready tasks that would delay the end (URGENT_SHARE)."""
        now = self._clock.now()
        self._compare(now)
        left: dict[Task, float] = {}
        running: dict[str, float] = {}
        begun = 0.0
        for task in self._tasks:
            if task.state in TO_BUILD:
                left[task] = self.expected_seconds(task.request)
                if task.runs_since is not None:
                    running[task.key] = now - task.runs_since
                    done = min(now - task.runs_since, (1 - LEFT_OF_LATE) * left[task])
                    begun += done
                    left[task] -= done
        all_left = sum(left.values())
        work = self._work + begun
        ends = self._ends(left, begun)
        last = max(ends.values(), default=0.0)
        for task in self._tasks.in_state(State.READY):
            if left[task] >= URGENT_SHARE * all_left / self._slots:
                self._tasks.expedite(task)
        known = self._work >= KNOWN_SHARE * (work + all_left) and self._ptxas.known
        share = work / max(work + all_left, 1e-9)
        return Estimate(running, share, last if known else None, self._of_jobs(job_ids, ends, known=known))

    def _ends(self, left: Mapping[Task, float], begun: float) -> dict[Task, float]:
        """Seconds until each task ends, from a simulation of the slots."""
        work = PRIOR_SECONDS * self._slots + self._recent_work + begun
        idle = (PRIOR_SECONDS * self._slots + self._recent_seconds) / work
        slots = [0.0] * self._slots
        ends = {}
        for task in sorted(left, key=lambda task: (task.runs_since is None, task.rank)):
            ends[task] = slots[0] + left[task] * idle
            heapq.heapreplace(slots, ends[task])
        return ends

    def _of_jobs(self, job_ids: Collection[str], ends: Mapping[Task, float], *, known: bool) -> dict[str, Outlook]:
        running = dict.fromkeys(job_ids, 0)
        last = dict.fromkeys(job_ids, 0.0)
        for task, end in ends.items():
            targets = task.all_targets()
            for job_id in {target.job for target in targets}:
                last[job_id] = max(last[job_id], end)
            running[self._tasks.oldest_job(task)] += task.runs_since is not None
        return {job_id: Outlook(running[job_id], last[job_id] if known else None) for job_id in job_ids}
