"""All that a coordinator has to make, from the first look into the store to the last cubin."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from farm.coordination.flights import AT_ONCE, Flights
from farm.coordination.plan import Plan
from farm.coordination.progress import Progress
from farm.coordination.retries import Retries
from farm.errors import StoreUnavailableError
from farm.executors.contract import Executor
from farm.store.contract import Store
from farm.worker.build import find_cubin, find_template
from farm.worker.requests import (
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
"""At least this often a run lets its coordinator look at the clock and at the ledger."""
LOOK_SECONDS = 2.0
"""How long a step looks into the store before it gives the executor its work."""
LOOKERS = 8
"""Threads that look."""
ENOUGH = 4
"""Requests queued for each that runs: with fewer, a coordinator may claim more jobs."""


class Run:
    """Templates first, then each cubin as soon as its template is there; the most expensive ones first."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        flights: Flights,
        retries: Retries,
        *,
        recache: bool,
        progress: Progress,
    ) -> None:
        self._store = store
        self._executor = executor
        self._flights = flights
        self._retries = retries
        self._recache = recache
        self._progress = progress
        self._wanted: dict[str, CubinRequest] = {}
        """Every cubin that is still to come, by the key that was asked for."""
        self._instead: dict[str, set[str]] = {}
        """By the key of a cubin that is built at a lower level: the keys that were asked for."""
        self._waiting: dict[str, list[CubinRequest]] = defaultdict(list)
        """By the key of the template that they need, which is still to come."""
        self._templates: set[str] = set()
        """That are there."""
        self._told: set[str] = set()
        """Templates of the last plan of which was said that they are there."""
        self._look_ups: deque[Request] = deque()
        self._queue: list[tuple[bool, int, int, Request]] = []
        """A heap: templates before cubins, then by cost, then in the plan's order."""
        self._delayed: list[tuple[float, int, Request]] = []
        """A heap: by when they are tried again."""
        self._order = itertools.count()
        self._submitted: dict[str, Request] = {}

    @property
    def busy(self) -> bool:
        """Whether anything is still to come."""
        return bool(self._wanted)

    @property
    def hungry(self) -> bool:
        """Whether workers will soon have nothing to do; asking starts none."""
        if self._look_ups:
            return False
        return not self._queue or len(self._queue) < ENOUGH * self._executor.capacity

    def add(self, plan: Plan) -> None:
        """Takes a plan on; what it shares with an earlier one is made once."""
        self._told.clear()
        for request in plan.cubins:
            if request.key not in self._wanted:
                self._wanted[request.key] = request
                if request.key not in self._instead:
                    self._look_ups.append(request)

    def drop(self, keys: Collection[str]) -> None:
        """Gives up cubins that nobody wants any more, and ends the tools that build them."""
        if not keys:
            return
        for key in keys:
            self._wanted.pop(key, None)
        for template in list(self._waiting):
            self._waiting[template] = [each for each in self._waiting[template] if self._needed(each)]
            if not self._waiting[template]:
                del self._waiting[template]
        flying = [key for key, request in self._submitted.items() if not self._needed(request)]
        self._executor.cancel(flying)
        for key in flying:
            del self._submitted[key]
        self._look_ups = deque(filter(self._needed, self._look_ups))
        self._queue = [entry for entry in self._queue if self._needed(entry[-1])]
        self._delayed = [entry for entry in self._delayed if self._needed(entry[-1])]
        heapq.heapify(self._queue)
        heapq.heapify(self._delayed)
        self._flights.keep(self._needed)
        self._flights.land()  # it may have been the last: then no step follows

    def step(self) -> list[Result | Retry]:
        """Goes on for a moment; the final result of every cubin, and of every template that one needs, as they come.

        Starts no worker as long as the store has all cubins.
        """
        finals = self._look_up()
        self._wake()
        self._submit()
        quick = bool(finals or self._look_ups)
        if self._submitted:
            for result in self._executor.wait(0.0 if quick else WAIT_SECONDS):
                finals += self._take(result)
        elif not quick and self._wanted:
            time.sleep(min(WAIT_SECONDS, self._pause_seconds()))
        self._flights.land()
        return finals

    def _needed(self, request: Request) -> bool:
        if isinstance(request, TemplateRequest):
            return request.key in self._waiting
        return not self._wanted.keys().isdisjoint({request.key} | self._instead.get(request.key, set()))

    def _look_up(self) -> list[Result | Retry]:
        """Several at a time: mostly one waits for S3."""
        if not self._look_ups:
            return []
        finals: list[Result | Retry] = []
        end = time.monotonic() + LOOK_SECONDS
        with ThreadPoolExecutor(LOOKERS) as pool:
            while self._look_ups and time.monotonic() < end:
                some = [self._look_ups.popleft() for _ in range(min(LOOKERS, len(self._look_ups)))]
                for request, found in zip(some, pool.map(self._find, some), strict=True):
                    finals += self._take_found(request, found)
        return finals

    def _find(self, request: Request) -> Result | Failure | None:
        """What the store has; several threads ask at once."""
        if self._recache:
            return None
        try:
            if isinstance(request, CubinRequest):
                return find_cubin(self._store, request.key)
            there = find_template(self._store, request.key) is not None
            return TemplateResult(request.key, hit=True) if there else None
        except StoreUnavailableError as error:
            return Failure(Fault.AWAY, str(error))

    def _take_found(self, request: Request, found: Result | Failure | None) -> list[Result | Retry]:
        if isinstance(found, Failure):
            return self._take_failure(request, found)
        if found is not None:
            return self._take_final(found)
        if isinstance(request, CubinRequest):
            return self._await_template(request)
        self._enqueue(request)
        return []

    def _await_template(self, request: CubinRequest) -> list[Result | Retry]:
        template = request.template
        if template.key in self._templates:
            self._enqueue(request)
            if template.key in self._told:
                return []
            self._told.add(template.key)
            return [TemplateResult(template.key, hit=True)]
        if template.key not in self._waiting:
            self._look_ups.append(template)
        self._waiting[template.key].append(request)
        return []

    def _enqueue(self, request: Request) -> None:
        heapq.heappush(self._queue, (isinstance(request, CubinRequest), -request.cost, next(self._order), request))

    def _wake(self) -> None:
        """What has waited for long enough, or is no longer built elsewhere, is looked up again."""
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            self._look_ups.append(heapq.heappop(self._delayed)[-1])
        self._look_ups.extend(self._flights.come_back())

    def _pause_seconds(self) -> float:
        return max(0.0, self._delayed[0][0] - time.monotonic()) if self._delayed else WAIT_SECONDS

    def _submit(self) -> None:
        while self._queue and (room := self._executor.capacity - len(self._submitted)) > 0:
            first = self._pop(room)
            if not all(self._flights.has(entry[-1].key) for entry in first):
                first += self._pop(AT_ONCE - len(first))  # a transaction for each would be slow
            mine = self._flights.take_off([entry[-1] for entry in first])
            cleared = [entry for entry in first if entry[-1].key in mine]
            for entry in cleared[:room]:
                request = entry[-1]
                self._submitted[request.key] = request
                self._executor.submit(request)
                self._progress.submitted(request)
            for entry in cleared[room:]:
                heapq.heappush(self._queue, entry)

    def _pop(self, count: int) -> list[tuple[bool, int, int, Request]]:
        return [heapq.heappop(self._queue) for _ in range(min(count, len(self._queue)))]

    def _take(self, result: Result) -> list[Result | Retry]:
        """The final results that follow from this one, or that it is tried again."""
        request = self._submitted.pop(result.key)
        if result.failure is not None:
            return self._take_failure(request, result.failure)
        return self._take_final(result)

    def _take_failure(self, request: Request, failure: Failure) -> list[Result | Retry]:
        retry = self._retries.after(request, failure)
        if retry is None:
            return self._take_final(failed(request, failure))
        again = retry.again
        if again.key != request.key:
            self._flights.done(request.key)
            self._lower(request.key, again)
        elif retry.delay_seconds:
            due = time.monotonic() + retry.delay_seconds
            heapq.heappush(self._delayed, (due, next(self._order), again))
        else:
            self._enqueue(again)
        return [retry]

    def _lower(self, asked: str, again: Request) -> None:
        """Builds another cubin instead, unless that one is on its way already."""
        if again.key not in self._wanted and again.key not in self._instead:
            self._look_ups.append(again)
        self._instead.setdefault(again.key, set()).add(asked)

    def _take_final(self, result: Result) -> list[Result | Retry]:
        return self._end(result) if isinstance(result, CubinResult) else self._take_template(result)

    def _end(self, result: CubinResult) -> list[Result | Retry]:
        """The result, for each key that was asked for."""
        self._flights.done(result.key)
        finals: list[Result | Retry] = []
        for asked in {result.key} | self._instead.pop(result.key, set()):
            self._retries.forget(asked)
            if self._wanted.pop(asked, None) is not None:
                finals.append(replace(result, instead_of="" if asked == result.key else asked))
        return finals

    def _take_template(self, result: TemplateResult) -> list[Result | Retry]:
        self._retries.forget(result.key)
        self._flights.done(result.key)
        cubins = self._waiting.pop(result.key, [])
        if result.failure is None:
            self._templates.add(result.key)
            self._told.add(result.key)
            for request in cubins:
                self._enqueue(request)
            return [result]
        failure = replace(result.failure, message=f"its template failed: {result.failure.message}")
        ends = (self._end(CubinResult(request.key, failure)) for request in cubins)
        return [result, *itertools.chain.from_iterable(ends)]
