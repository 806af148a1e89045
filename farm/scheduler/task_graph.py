"""The task graph: one task per key, its state, and the jobs and tasks that depend on it.

A cubin has jobs as its targets, and as dependents the cubins that are rebuilt at its lower level or wait for the code
of its mask. A template has the cubins that wait for it as dependents. A task that has neither is abandoned, together
with the tasks that only it needed. Pure: no access to the store, the executor or the ledger.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from codegen.selection.tool_time import direct_seconds
from farm.scheduler.backlog import Backlog
from farm.scheduler.plan import Target
from farm.scheduler.retry import Attempts
from farm.scheduler.task import ALLOWED_MOVES, QUEUED, URGENT, CubinTask, Rank, State, Task, TemplateTask
from farm.worker.messages import CubinRequest


@dataclass(frozen=True)
class AbandonedTask:
    """A task without targets and dependents, which the graph has dropped or made idle."""

    key: str
    was_acquired: bool
    """Whether the ledger still has its key under this coordinator."""
    was_in_flight: bool
    """Whether the executor still has its request."""


class TaskGraph:
    """The tasks of all held jobs. `move` makes every state transition."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._in: dict[State, dict[str, Task]] = {state: {} for state in State}
        self._of_job: dict[str, dict[str, CubinTask]] = {}
        self._orders: dict[str, int] = {}
        self._job_at: dict[float, str] = {}
        """Jobs by their order."""
        self.backlog = Backlog()
        """Tasks that are still to be built and not submitted."""
        self._queues: dict[State, list[tuple[Rank, Task]]] = {state: [] for state in QUEUED}
        """Heaps. An entry whose task has another state or rank by now is stale and skipped."""
        self._of_mask: dict[str, CubinTask] = {}
        """The first submitted cubin of each mask whose code is unknown, by the key of its patch template."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    @property
    def busy(self) -> bool:
        """Whether any task is unfinished."""
        return len(self._tasks) > len(self._in[State.IDLE]) + len(self._in[State.DONE])

    def count(self, state: State) -> int:
        """Number of tasks in a state."""
        return len(self._in[state])

    def in_state(self, state: State) -> list[Task]:
        """Tasks in a state, in the order in which they entered it."""
        return list(self._in[state].values())

    def in_flight(self, key: str) -> Task:
        """The submitted task with this key."""
        return self._in[State.IN_FLIGHT][key]

    def find_in_flight(self, key: str) -> Task | None:
        """The submitted task with this key; None if there is none."""
        return self._in[State.IN_FLIGHT].get(key)

    def add_job(self, job_id: str) -> None:
        """Register a job; it is younger than all jobs added before."""
        self._orders[job_id] = order = next(self._numbers)
        self._job_at[order] = job_id
        self._of_job[job_id] = {}

    def add_cubin(self, request: CubinRequest, targets: Sequence[Target]) -> None:
        """Add targets of registered jobs to a cubin, whose task is created if its key is new."""
        task = self._cubin(request)
        task.targets += targets
        for target in targets:
            self._of_job[target.job][task.key] = task
        self._raise_priority(task, min(self._orders[target.job] for target in targets))

    def release(self, job_id: str) -> list[AbandonedTask]:
        """Remove a job; returns the tasks that only this job needed."""
        abandoned: list[AbandonedTask] = []
        self._job_at.pop(self._orders.pop(job_id, math.nan), None)
        for task in self._of_job.pop(job_id, {}).values():
            task.targets = [target for target in task.targets if target.job != job_id]
            self._drop_if_unwanted(task, abandoned)
        return abandoned

    def move(self, task: Task, state: State) -> None:
        """Make a state transition. Raises AssertionError for one that ALLOWED_MOVES does not have."""
        if state not in ALLOWED_MOVES[task.state]:
            raise AssertionError(f"a task cannot move from '{task.state}' to '{state}'")
        del self._in[task.state][task.key]
        task.state, task.queued, task.runs_since = state, None, None
        self._in[state][task.key] = task
        self._queue(task)

    def pop(self, state: State, count: int) -> list[Task]:
        """Take up to `count` tasks from the front of a queue; each must be moved or put back afterwards."""
        heap, found = self._queues[state], list[Task]()
        while heap and len(found) < count:
            rank, task = heapq.heappop(heap)
            if task.state is state and task.queued == rank:
                task.queued = None
                found.append(task)
        return found

    def peek(self, state: State, count: int) -> list[Task]:
        """Up to `count` tasks from near the front of a queue, which stay in it."""
        valid = (task for rank, task in self._queues[state] if task.state is state and task.queued == rank)
        return list(itertools.islice(valid, count))

    def put_back(self, task: Task) -> None:
        """Return a popped task to its queue."""
        self._queue(task)

    def expedite(self, task: Task) -> None:
        """Put a task before all jobs in its queue."""
        self._raise_priority(task, URGENT)

    def active_jobs(self) -> dict[str, bool]:
        """Jobs for which a task is being built, here or elsewhere; the value tells whether one of them is a cubin.

        A task that several jobs share counts for the oldest of them.
        """
        found: dict[str, bool] = {}
        for state in (State.IN_FLIGHT, State.ELSEWHERE):
            for task in self._in[state].values():
                job_id = self.oldest_job(task)
                found[job_id] = found.get(job_id, False) or isinstance(task, CubinTask)
        return found

    def oldest_job(self, task: Task) -> str:
        """The oldest of the jobs that need a task."""
        # A template may have as many targets as the graph has cubins. The order tells the job, except of an expedited
        # task and of one whose oldest job has ended.
        if (job_id := self._job_at.get(task.order)) is not None:
            return job_id
        return min((target.job for target in task.all_targets()), key=self._orders.__getitem__)

    def order_of(self, job_id: str) -> int:
        """The order of a job: the older, the lower."""
        return self._orders[job_id]

    def cubins_of(self, job_id: str) -> Collection[CubinTask]:
        """The unfinished cubins that a job wants."""
        return self._of_job[job_id].values()

    def wait_for_template(self, task: CubinTask) -> None:
        """Block a cubin until its template is made; starts the template if it is idle."""
        self._wait(task, task.template, State.NEEDS_TEMPLATE)
        if task.template.state is State.IDLE:
            self.move(task.template, State.LOOK_UP)

    def wait_for_mask(self, task: Task) -> bool:
        """Block a cubin while another one with its mask is built first; whether there is one.

        Otherwise the cubin is the first, and those that come to this point before it is done wait for it.
        """
        if not isinstance(task, CubinTask) or not task.request.patch_template:
            return False
        first = self._of_mask.setdefault(task.request.patch_template, task)
        if first is task:
            return False
        task.request = replace(task.request, seconds=direct_seconds(task.request.cost))
        self._wait(task, first, State.NEEDS_MASK)
        return True

    def wait_for_lower(self, task: CubinTask, lower: CubinRequest) -> None:
        """Block a cubin until its replacement at a lower level is done; the replacement may already be in the graph."""
        self._wait(task, self._cubin(lower), State.NEEDS_LOWER)

    def template_made(self, template: TemplateTask) -> None:
        """Finish a template; the cubins that waited for it become ready."""
        self.move(template, State.DONE)
        for task in self._take_dependents(template):
            self.move(task, State.READY)

    def template_failed(self, template: TemplateTask) -> list[CubinTask]:
        """Make a failed template idle; returns the cubins that waited for it. A later cubin starts it again."""
        self._make_idle(template)
        return self._take_dependents(template)

    def cubin_done(self, task: CubinTask) -> list[CubinTask]:
        """Finish a cubin, made or failed; returns the cubins that it replaces, which end with it.

        Cubins that waited for the code of its mask become ready, also if it failed: they do not wait again.
        """
        self.move(task, State.DONE)
        dependents = self._take_dependents(task)
        instead = [each for each in dependents if each.state is State.NEEDS_LOWER]
        for each in dependents:
            if each.state is State.NEEDS_MASK:
                each.request = replace(each.request, patch_template="")
                self.move(each, State.READY)
        self._remove_cubin(task, [])
        return instead

    def _cubin(self, request: CubinRequest) -> CubinTask:
        task = self._tasks.get(request.key)
        if isinstance(task, CubinTask):
            return task
        template = self._tasks.get(request.template.key)
        if not isinstance(template, TemplateTask):
            template = TemplateTask(request.template, next(self._numbers))
            self._insert(template)
        task = CubinTask(request, next(self._numbers), State.LOOK_UP, template=template)
        template.users[task.key] = task
        self._insert(task)
        return task

    def _insert(self, task: Task) -> None:
        self._tasks[task.key] = task
        self._in[task.state][task.key] = task
        self._queue(task)

    def _queue(self, task: Task) -> None:
        self.backlog.update(task)
        if task.state in QUEUED and task.queued != task.rank:
            task.queued = task.rank
            heapq.heappush(self._queues[task.state], (task.queued, task))

    def _wait(self, task: CubinTask, other: Task, state: State) -> None:
        self.move(task, state)
        task.dependency = other
        other.dependents[task.key] = task
        self._raise_priority(other, task.order)

    def _take_dependents(self, task: Task) -> list[CubinTask]:
        dependents, task.dependents = list(task.dependents.values()), {}
        task.order = math.inf
        for each in dependents:
            each.dependency = None
        return dependents

    def _raise_priority(self, task: Task, order: float) -> None:
        """Lower the task's order to `order`, if that is older than its own."""
        if order < task.order:
            self._set_order(task, order)

    def _set_order(self, task: Task, order: float) -> None:
        task.order = order
        self._queue(task)
        if isinstance(task, CubinTask) and task.dependency is not None:
            self._raise_priority(task.dependency, order)

    def _drop_if_unwanted(self, task: Task, abandoned: list[AbandonedTask]) -> None:
        """Abandon a task that has lost its last target or dependent, else recompute its order."""
        if task.wanted:
            targets = task.targets if isinstance(task, CubinTask) else []
            orders = [self._orders[target.job] for target in targets]
            order = min([*orders, *(each.order for each in task.dependents.values())])
            if order != task.order:
                self._set_order(task, order)
            return
        abandoned.append(AbandonedTask(task.key, task.acquired, task.state is State.IN_FLIGHT))
        if isinstance(task, CubinTask):
            self._remove_cubin(task, abandoned)
        elif isinstance(task, TemplateTask):
            self._make_idle(task)

    def _make_idle(self, template: TemplateTask) -> None:
        self.move(template, State.IDLE)
        template.order = math.inf
        template.attempts = Attempts()
        template.acquired = False
        template.submitted_at = None

    def _remove_cubin(self, task: CubinTask, abandoned: list[AbandonedTask]) -> None:
        """Remove a cubin, its unneeded dependency, and its template once no other cubin uses that."""
        self._remove(task)
        self._of_mask = {key: first for key, first in self._of_mask.items() if first is not task}
        for target in task.targets:
            if target.job in self._of_job:
                self._of_job[target.job].pop(task.key, None)
        if (dependency := task.dependency) is not None:
            task.dependency = None
            del dependency.dependents[task.key]
            self._drop_if_unwanted(dependency, abandoned)
        del task.template.users[task.key]
        if not task.template.users:
            self._remove(task.template)

    def _remove(self, task: Task) -> None:
        task.queued = None
        self.backlog.update(task, removed=True)
        del self._tasks[task.key], self._in[task.state][task.key]
