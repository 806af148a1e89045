"""One plan, from its first look into the store to its last cubin: what is asked of an executor, and when."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from farm.build import find_cubin, find_template
from farm.executors.contract import Executor
from farm.plan import Plan
from farm.progress import Progress
from farm.requests import (
    CubinRequest,
    CubinResult,
    Fault,
    Request,
    Result,
    Retry,
    TemplateRequest,
    TemplateResult,
)
from farm.store.contract import Store

WAIT_SECONDS = 1.0
"""At least this often a run lets its coordinator look at the clock."""


class Run:
    """Templates first, then each cubin as soon as its template is there; the most expensive ones first."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        executor: Executor,
        *,
        max_retries: int,
        recache: bool,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._store = store
        self._executor = executor
        self._max_retries = max_retries
        self._recache = recache
        self._progress = progress
        self._queue: list[tuple[bool, int, int, Request]] = []
        """A heap: templates before cubins, then by cost, then in the plan's order."""
        self._order = itertools.count()
        self._submitted: dict[str, Request] = {}
        self._waiting: dict[str, list[CubinRequest]] = defaultdict(list)
        """By the key of the template that they need."""
        self._tries: Counter[str] = Counter()

    def batches(self) -> Iterator[list[Result | Retry]]:
        """The final result of every cubin, and of every template that one needs, as they come; some batches are empty.

        Starts no worker if the store has all cubins.
        """
        missing: list[CubinRequest] = []
        for request in self._plan.cubins:
            found = None if self._recache else find_cubin(self._store, request.key)
            if found is None:
                missing.append(request)
            else:
                yield [found]
        for request in missing:
            self._waiting[request.template.key].append(request)
        for template in self._plan.templates:
            if template.key in self._waiting:
                yield self._look_up_template(template)
        while self._queue or self._submitted:
            while self._queue and len(self._submitted) < self._executor.capacity:
                self._submit(heapq.heappop(self._queue)[-1])
            yield [final for result in self._executor.wait(WAIT_SECONDS) for final in self._take(result)]

    def _look_up_template(self, template: TemplateRequest) -> list[Result | Retry]:
        if self._recache or find_template(self._store, template.key) is None:
            self._enqueue(template)
            return []
        return self._take_template(TemplateResult(template.key, hit=True))

    def _enqueue(self, request: Request) -> None:
        heapq.heappush(self._queue, (isinstance(request, CubinRequest), -request.cost, next(self._order), request))

    def _submit(self, request: Request) -> None:
        self._submitted[request.key] = request
        self._executor.submit(request)
        self._progress.submitted(request)

    def _take(self, result: Result) -> list[Result | Retry]:
        """The final results that follow from this one, or that it is tried again."""
        request = self._submitted.pop(result.key)
        failure = result.failure
        if failure is not None and failure.fault is Fault.CRASH and self._tries[result.key] < self._max_retries:
            self._tries[result.key] += 1
            self._enqueue(request)
            return [Retry(request, failure)]
        return [result] if isinstance(result, CubinResult) else self._take_template(result)

    def _take_template(self, result: TemplateResult) -> list[Result | Retry]:
        cubins = self._waiting.pop(result.key)
        if result.failure is None:
            for request in cubins:
                self._enqueue(request)
            return [result]
        failure = replace(result.failure, message=f"its template failed: {result.failure.message}")
        return [result, *(CubinResult(request.key, failure) for request in cubins)]
