"""Estimated time of arrival of each job, from predicted tool times and the times that this coordinator has measured."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from farm.ledger.running_jobs import Outlook
from farm.scheduler.backlog import Group, Place
from farm.scheduler.clock import Clock
from farm.scheduler.scheduler import CubinDone, Event, TemplateDone
from farm.scheduler.task import URGENT, CubinTask, State, Task
from farm.scheduler.task_graph import TaskGraph
from farm.worker.messages import CubinFacts, Request, Turn

REQUEST_SECONDS = 0.05
"""Overhead of a request besides its tool: reading, rewriting, store access, transfer to and from a worker."""
MEMORY_SECONDS = 300.0
"""Time constant of the exponential decay of old measurements, since the load of a machine changes."""
KNOWN_SHARE = 0.03
"""Share of the work that must be done, besides one cubin, before an end is predicted."""
URGENT_SHARE = 0.9
"""A task that takes this share of the remaining time starts next: started last, it would delay the end. One slot is
left for the others, so that results still come."""
PRIOR_SECONDS = 0.5
"""Weight of the initial assumption, as seconds of predicted work."""
LEFT_OF_LATE = 0.1
"""Least remaining share of the expected time of a task that runs."""
SIMULATED_TASKS = 2000
"""Most unsubmitted tasks whose ends are simulated one by one; about 5 ms."""


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


@dataclass(frozen=True)
class _ExpectedGroup:
    """A group of the backlog with expected times."""

    order: float
    group: Group
    seconds: float
    """Sum of its tasks' expected times."""
    longest_seconds: float


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
        self._tools = {turn: _Tool() for turn in Turn}
        """The direct assembler, nvcc and ptxas."""
        self._ratios = dict.fromkeys(Turn, 1.0)
        """Measured per predicted time of each tool."""
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
        return REQUEST_SECONDS + self._ratios[request.turn] * request.seconds

    def _compare(self, now: float) -> None:
        """Update the ratios. Overdue runs count too, and a tool without measurements takes another tool's ratio."""
        late: dict[Turn, list[tuple[float, float]]] = {turn: [] for turn in Turn}
        for task in self._tasks.in_state(State.IN_FLIGHT):
            taken = 0.0 if task.runs_since is None else now - task.runs_since
            if taken > self.expected_seconds(task.request):
                late[task.request.turn].append((task.request.seconds, taken))
        otherwise = self._tools[Turn.PTXAS].ratio(1.0)
        for turn in (Turn.TEMPLATE, Turn.PTXAS, Turn.DIRECT):
            otherwise = self._ratios[turn] = self._tools[turn].ratio(otherwise, late[turn])

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
        for key in running:
            if (task := self._tasks.find_in_flight(key)) is not None and task.runs_since is None:
                task.runs_since = now
        in_flight = self._tasks.count(State.IN_FLIGHT)
        self._slots = max(self._slots, len(running))
        self._usable = min(self._slots, in_flight + self._tasks.count(State.READY))
        self._observed_at = now if in_flight else None
        if not self._tasks.busy:
            self._slots, self._usable, self._work, self._recent_work, self._recent_seconds = 1, 0, 0.0, 0.0, 0.0

    def _learn(self, event: Event) -> None:
        taken = 0.0
        if isinstance(event, TemplateDone) and event.result.failure is None and not event.result.hit:
            taken = event.result.seconds
            self._tools[Turn.TEMPLATE].learn(event.request.seconds, taken)
        elif isinstance(event, CubinDone) and isinstance(event.result.made, CubinFacts) and not event.result.hit:
            taken = event.result.made.rewrite_seconds + event.result.made.ptxas_seconds
            expected = "ptxas" if event.request.turn is Turn.PTXAS else event.request.assembler
            fell_back = event.result.made.assembler != expected
            if not event.result.instead_of and not fell_back:
                self._tools[event.request.turn].learn(event.request.seconds, taken)
        if taken:
            self._work += taken + REQUEST_SECONDS
            self._recent_work += taken + REQUEST_SECONDS

    def estimate(self, job_ids: Collection[str]) -> Estimate:
        """Estimate the remaining time of jobs; expedites ready tasks that would delay the end (URGENT_SHARE).

        The cost depends on the number of jobs and of submitted tasks, not on that of all tasks.
        """
        now = self._clock.now()
        self._compare(now)
        submitted: dict[Task, float] = {}
        running: dict[str, float] = {}
        begun = 0.0
        for task in self._tasks.in_state(State.IN_FLIGHT):
            submitted[task] = self.expected_seconds(task.request)
            if task.runs_since is not None:
                running[task.key] = now - task.runs_since
                done = min(now - task.runs_since, (1 - LEFT_OF_LATE) * submitted[task])
                begun += done
                submitted[task] -= done
        groups = [self._expected(place, group) for place, group in self._tasks.backlog.groups()]
        all_left = sum(submitted.values()) + sum(each.seconds for each in groups)
        work = self._work + begun
        ends, last = self._ends(job_ids, submitted, groups, begun)
        self._expedite(submitted, groups, URGENT_SHARE * all_left / self._slots)
        measured = self._tools[Turn.DIRECT].known or self._tools[Turn.PTXAS].known
        known = measured and self._work >= KNOWN_SHARE * (work + all_left)
        share = work / max(work + all_left, 1e-9)
        of_jobs = dict.fromkeys(job_ids, 0)
        for task in submitted:
            of_jobs[self._tasks.oldest_job(task)] += task.runs_since is not None
        outlooks = {job_id: Outlook(count, ends[job_id] if known else None) for job_id, count in of_jobs.items()}
        return Estimate(running, share, last if known else None, outlooks)

    def _expected(self, place: Place, group: Group) -> _ExpectedGroup:
        order, turn = place
        ratio = self._ratios[turn]
        return _ExpectedGroup(
            order,
            group,
            REQUEST_SECONDS * len(group) + ratio * group.seconds,
            REQUEST_SECONDS + ratio * group.longest_seconds,
        )

    def _expedite(
        self, submitted: Mapping[Task, float], groups: Sequence[_ExpectedGroup], least_seconds: float
    ) -> None:
        """Put ready tasks that take at least that long before all jobs, on all slots but one."""
        long: list[Task] = []
        free = self._slots - 1 - sum(seconds >= least_seconds for seconds in submitted.values())
        for each in groups:
            if each.order == URGENT:
                free -= len(each.group)
            elif each.longest_seconds >= least_seconds:
                lasting = itertools.takewhile(
                    lambda task: self.expected_seconds(task.request) >= least_seconds, reversed(each.group)
                )
                long += [task for task in lasting if task.state is State.READY]
        for task in long[: max(0, free)]:
            self._tasks.expedite(task)

    def _ends(
        self, job_ids: Collection[str], submitted: Mapping[Task, float], groups: Sequence[_ExpectedGroup], begun: float
    ) -> tuple[dict[str, float], float]:
        """Seconds until each job ends, and until all end.

        Simulates the slots for submitted tasks, running ones first, and for the groups next in the queue. Groups behind
        SIMULATED_TASKS are assumed to divide evenly among the slots, which is off by the longest task at most. A job
        that only shares such groups of older jobs ends with them.
        """
        work = PRIOR_SECONDS * self._slots + self._recent_work + begun
        idle = (PRIOR_SECONDS * self._slots + self._recent_seconds) / work
        slots = [0.0] * self._slots
        ends: dict[Task, float] = {}

        def simulate(task: Task, seconds: float) -> None:
            ends[task] = slots[0] + seconds * idle
            heapq.heapreplace(slots, ends[task])

        for task in sorted(submitted, key=lambda task: (task.runs_since is None, task.rank)):
            simulate(task, submitted[task])
        behind = iter(groups)
        simulated = 0
        group_ends: dict[float, float] = {}
        """Ends of the groups that are not simulated, by their order."""
        for each in behind:
            simulated += len(each.group)
            if simulated > SIMULATED_TASKS:
                behind = itertools.chain([each], behind)
                break
            for task in each.group:
                simulate(task, self.expected_seconds(task.request))
        level = sum(slots) / self._slots
        for each in behind:
            even = each.seconds / self._slots
            end = level + idle * max(even, each.longest_seconds)
            group_ends[each.order] = max(group_ends.get(each.order, 0.0), end)
            level += idle * even
        last = self._last_ends(job_ids, ends, group_ends)
        return last, max([*ends.values(), *group_ends.values()], default=0.0)

    def _last_ends(
        self, job_ids: Collection[str], ends: Mapping[Task, float], group_ends: Mapping[float, float]
    ) -> dict[str, float]:
        """The last end of a task of each job, from the ends of simulated tasks and of the groups behind them."""
        last = dict.fromkeys(job_ids, 0.0)
        if group_ends:
            for job_id in job_ids:
                own = self._tasks.order_of(job_id)
                orders = (own,) if own in group_ends else _orders(self._tasks.cubins_of(job_id))
                last[job_id] = max((group_ends.get(order, 0.0) for order in orders), default=0.0)
        templates: list[tuple[float, Task]] = []
        for task, end in ends.items():
            if isinstance(task, CubinTask):
                for job_id in {target.job for target in task.all_targets()}:
                    last[job_id] = max(last[job_id], end)
            else:
                templates.append((end, task))
        for end, template in templates:
            # Fewer than the template's dependents, which may be all cubins of the graph.
            for job_id in [job_id for job_id in job_ids if last[job_id] < end]:
                if any(cubin.dependency is template for cubin in self._tasks.cubins_of(job_id)):
                    last[job_id] = end
        return last


def _orders(cubins: Iterable[CubinTask]) -> set[float]:
    """Orders of the unsubmitted ones of cubins and of their replacements at a lower level."""
    orders = set[float]()
    for cubin in cubins:
        task = cubin.dependency if isinstance(cubin.dependency, CubinTask) else cubin
        if task.listed is not None:
            orders.add(task.order)
    return orders
