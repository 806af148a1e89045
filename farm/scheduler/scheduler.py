"""The scheduler: takes every template and cubin from cache lookup to result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

from codegen.selection.tool_time import direct_seconds
from farm.errors import StoreUnavailableError
from farm.executors.contract import Executor
from farm.scheduler.clock import Clock
from farm.scheduler.in_flight import KEYS_AT_ONCE, InFlightKeys
from farm.scheduler.plan import Plan, Target
from farm.scheduler.retry import RetryPolicy
from farm.scheduler.task import TO_BUILD, CubinTask, State, Task, TemplateTask
from farm.scheduler.task_graph import TaskGraph
from farm.store.contract import Store
from farm.worker.cache_lookup import find_cubin, find_template, has_patch_template
from farm.worker.messages import (
    CubinRequest,
    CubinResult,
    Failure,
    Fault,
    Request,
    Result,
    Retry,
    TemplateRequest,
    TemplateResult,
    failed,
)

WAIT_SECONDS = 0.5
"""Longest wait of a step for results, so that the coordinator sees the clock and the ledger."""
LOOKUP_SECONDS = 2.0
"""Longest time of a step's cache lookups, so that the executor gets its work."""
LOOKUP_THREADS = 8
"""Threads for cache lookups."""
EXPECTED_REQUESTS = 64
"""Ready requests announced to the executor beyond its capacity."""
READY_PER_SLOT = 4
"""Ready tasks per unit of the executor's capacity, below which the coordinator claims more jobs."""


@dataclass(frozen=True)
class Submitted:
    """A request was given to the executor."""

    request: Request


@dataclass(frozen=True)
class Retried:
    """A request failed and will be retried."""

    retry: Retry
    targets: Sequence[Target]


@dataclass(frozen=True)
class TemplateDone:
    """A template is there, or failed together with the cubins that need it."""

    request: TemplateRequest
    result: TemplateResult
    targets: Sequence[Target]
    submitted_at: float | None = None
    """Time at which the executor got it; None if it did not."""


@dataclass(frozen=True)
class CubinDone:
    """A cubin that jobs want is there, or failed for good."""

    request: CubinRequest
    """The original request; the result may be of a lower optimisation level."""
    result: CubinResult
    targets: Sequence[Target]
    submitted_at: float | None = None
    """Time at which the executor got it; None if it did not."""


Event = Submitted | Retried | TemplateDone | CubinDone


class Scheduler:
    """Drives the task graph through store and executor: oldest job first, then as `Task.rank` says.

    The executor is not started if the store has all results.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        keys: InFlightKeys,
        retry_policy: RetryPolicy,
        *,
        recache: bool,
        clock: Clock,
    ) -> None:
        self._store = store
        self._executor = executor
        self._keys = keys
        self._retry_policy = retry_policy
        self._recache = recache
        self._clock = clock
        self._announced = False
        self.tasks = TaskGraph()

    @property
    def busy(self) -> bool:
        """Whether any task is unfinished."""
        return self.tasks.busy

    @property
    def wants_jobs(self) -> bool:
        """Whether too few tasks are ready. Without a ready task it does not ask the executor, which would start it."""
        if self.tasks.count(State.LOOK_UP):
            return False
        ready = self.tasks.count(State.READY)
        return not ready or ready < READY_PER_SLOT * self._executor.capacity

    def add(self, plan: Plan, job_ids: Iterable[str]) -> None:
        """Add the plan of new jobs, given oldest first; tasks shared with earlier jobs run once."""
        for job_id in job_ids:
            self.tasks.add_job(job_id)
        for request in plan.cubins:
            self.tasks.add_cubin(request, plan.targets[request.key])

    def add_parts(self, plans: Iterable[Plan]) -> None:
        """Add plans for layers of known jobs that were split into parts."""
        for each in plans:
            for request in each.cubins:
                self.tasks.add_cubin(request, each.targets[request.key])

    def release(self, job_ids: Collection[str]) -> None:
        """Remove ended jobs and cancel the tasks that only they needed."""
        abandoned = list(chain.from_iterable(self.tasks.release(job_id) for job_id in job_ids))
        self._executor.cancel([each.key for each in abandoned if each.was_in_flight])
        for each in abandoned:
            if each.was_acquired:
                self._keys.release(each.key)
        self._announce()
        self._keys.flush(at_once=not self.busy)  # after the last job no step follows

    def step(self) -> list[Event]:
        """Look up, submit and collect results for at most a few seconds; returns the events."""
        events = self._look_up()
        self._wake()
        self._announce_all()
        events += self._submit()
        self._announce()
        quick = bool(events or self.tasks.count(State.LOOK_UP))
        if self.tasks.count(State.IN_FLIGHT):
            for result in self._executor.wait(0.0 if quick else WAIT_SECONDS):
                events += self._take(result)
        elif not quick and self.busy:
            self._clock.sleep(self._pause_seconds())
        self._keys.flush(at_once=not self.busy)
        return events

    def _look_up(self) -> list[Event]:
        """Look tasks up in the store in parallel, because most of the time is waiting for S3."""
        if not self.tasks.count(State.LOOK_UP):
            return []
        events: list[Event] = []
        end = self._clock.now() + LOOKUP_SECONDS
        with ThreadPoolExecutor(LOOKUP_THREADS) as pool:
            while self._clock.now() < end and (some := self.tasks.pop(State.LOOK_UP, LOOKUP_THREADS)):
                for task, found in zip(some, pool.map(self._lookup, [each.request for each in some]), strict=True):
                    events += self._take_lookup(task, found)
        return events

    def _lookup(self, request: Request) -> Result | Failure | Request:
        """Cache lookup of one request; on a miss the request itself. Runs in several threads at once."""
        if self._recache:
            return request
        try:
            if isinstance(request, CubinRequest):
                return find_cubin(self._store, request.key, whole=request.whole) or self._with_known_mask(request)
            there = find_template(self._store, request.key) is not None
            return TemplateResult(request.key, hit=True) if there else request
        except StoreUnavailableError as error:
            return Failure(Fault.AWAY, str(error))

    def _with_known_mask(self, request: CubinRequest) -> CubinRequest:
        """The request, which waits for no other cubin and takes less time if the code of its mask is stored."""
        known = has_patch_template(self._store, request.patch_template) if request.patch_template else None
        if known is None:
            return request
        seconds = direct_seconds(request.cost) if known else request.seconds
        return replace(request, patch_template="", seconds=seconds)

    def _take_lookup(self, task: Task, found: Result | Failure | Request) -> list[Event]:
        if isinstance(found, Failure):
            return self._take_failure(task, found)
        if isinstance(found, TemplateResult | CubinResult):
            return self._end(task, found)
        task.request = found
        if isinstance(task, CubinTask) and task.template.state is not State.DONE:
            self.tasks.wait_for_template(task)
            return []
        self.tasks.move(task, State.READY)
        if not isinstance(task, CubinTask):
            return []
        request = task.template.request
        return [TemplateDone(request, TemplateResult(request.key, hit=True), task.all_targets())]

    def _wake(self) -> None:
        """Look up again: delayed tasks whose time has come, and tasks whose key another coordinator has released."""
        now = self._clock.now()
        for task in [each for each in self.tasks.in_state(State.DELAYED) if each.due <= now]:
            self.tasks.move(task, State.LOOK_UP)
        elsewhere = {task.key: task for task in self.tasks.in_state(State.ELSEWHERE)}
        for key, crashes in self._keys.acquire_later(elsewhere, local=self._executor.local).items():
            elsewhere[key].acquire(crashes)
            self.tasks.move(elsewhere[key], State.LOOK_UP)

    def _pause_seconds(self) -> float:
        dues = [task.due for task in self.tasks.in_state(State.DELAYED)]
        return max(0.0, min(WAIT_SECONDS, min(dues, default=0.0) - self._clock.now())) if dues else WAIT_SECONDS

    def _announce_all(self) -> None:
        """Tell the executor all known work, once, when the first task is ready."""
        if not self._announced and self.tasks.count(State.READY):
            self._announced = True
            self._executor.foresee([task.request for task in self.tasks if task.state in TO_BUILD])

    def _submit(self) -> list[Event]:
        events: list[Event] = []
        while (
            self.tasks.count(State.READY)
            and (room := self._executor.capacity - self.tasks.count(State.IN_FLIGHT)) > 0
            and (first := self.tasks.pop(State.READY, room))
        ):
            if not all(task.acquired for task in first):
                first += self.tasks.pop(State.READY, KEYS_AT_ONCE - len(first))  # a transaction for each would be slow
            wanted = [task.key for task in first if not task.acquired]
            granted = self._keys.acquire(wanted, local=self._executor.local)
            for task in first:
                if task.key in granted:
                    task.acquire(granted[task.key])
                if not task.acquired:
                    self.tasks.move(task, State.ELSEWHERE)
                elif (failure := self._retry_policy.given_up(task.attempts)) is not None:
                    self.tasks.move(task, State.IN_FLIGHT)
                    events += self._end(task, failed(task.request, failure))
                elif room == 0:
                    self.tasks.put_back(task)
                elif self._recache or not self.tasks.wait_for_mask(task):
                    room -= 1
                    self.tasks.move(task, State.IN_FLIGHT)
                    self._executor.submit(task.request)
                    task.submitted_at = self._clock.now()
                    events.append(Submitted(task.request))
        return events

    def _announce(self) -> None:
        """Tell the executor the next ready requests, so that a cluster can grow."""
        self._executor.expect([task.request for task in self.tasks.peek(State.READY, EXPECTED_REQUESTS)])

    def _take(self, result: Result) -> list[Event]:
        """Process a result of the executor."""
        task = self.tasks.in_flight(result.key)
        return self._end(task, result) if result.failure is None else self._take_failure(task, result.failure)

    def _take_failure(self, task: Task, failure: Failure) -> list[Event]:
        retry = self._retry_policy.after(task.request, failure, task.attempts, self._clock.now())
        if retry is None:
            return self._end(task, failed(task.request, failure))
        if failure.fault is Fault.CRASH:
            self._keys.count_crash(task.key)
        again = retry.again
        if isinstance(task, CubinTask) and isinstance(again, CubinRequest) and again.key != task.key:
            self._release_key(task)
            self.tasks.wait_for_lower(task, again)
        elif retry.delay_seconds:
            task.due = self._clock.now() + retry.delay_seconds
            self.tasks.move(task, State.DELAYED)
        else:
            task.request = again
            self.tasks.move(task, State.READY)
        return [Retried(retry, task.all_targets())]

    def _end(self, task: Task, result: Result) -> list[Event]:
        self._release_key(task)
        if isinstance(task, CubinTask) and isinstance(result, CubinResult):
            return self._end_cubin(task, result)
        if isinstance(task, TemplateTask) and isinstance(result, TemplateResult):
            return self._end_template(task, result)
        raise TypeError(f"result of a {type(task).__name__} is a {type(result).__name__}")

    def _end_template(self, template: TemplateTask, result: TemplateResult) -> list[Event]:
        done = TemplateDone(template.request, result, template.all_targets(), template.submitted_at)
        if result.failure is None:
            self.tasks.template_made(template)
            return [done]
        failure = replace(result.failure, message=f"its template failed: {result.failure.message}")
        events: list[Event] = [done]
        for task in self.tasks.template_failed(template):
            self._release_key(task)
            events += self._end_cubin(task, CubinResult(task.key, failure))
        return events

    def _end_cubin(self, task: CubinTask, result: CubinResult) -> list[Event]:
        """Finish a cubin, and the cubins that it replaces because they timed out."""
        instead = self.tasks.cubin_done(task)
        done = CubinDone(task.request, result, task.targets, task.submitted_at)
        events: list[Event] = [done] if task.targets else []
        for each in instead:
            shared = replace(result, instead_of=each.key, hit=result.hit or bool(events))
            events += self._end_cubin(each, shared)
        return events

    def _release_key(self, task: Task) -> None:
        if task.acquired:
            task.acquired = False
            self._keys.release(task.key)
