"""Makes all that is still to come, from the first look into the store to the last cubin."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

from farm.errors import StoreUnavailableError
from farm.executors.contract import Executor
from farm.scheduler.clock import Clock
from farm.scheduler.in_flight import AT_ONCE, Flights
from farm.scheduler.plan import Plan, Target
from farm.scheduler.retry import Retries
from farm.scheduler.task import TO_BUILD, Cubin, Piece, State, Template
from farm.scheduler.task_graph import Pieces
from farm.store.contract import Store
from farm.worker.cache_lookup import find_cubin, find_template
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
"""At least this often a run lets its coordinator look at the clock and at the ledger."""
LOOK_SECONDS = 2.0
"""How long a step looks into the store before it gives the executor its work."""
LOOKERS = 8
"""Threads that look."""
EXPECTED = 64
"""Requests that the executor hears of before there is room for them."""
ENOUGH = 4
"""Requests ready for each that runs: with fewer, a coordinator may claim more jobs."""


@dataclass(frozen=True)
class Submitted:
    """A worker has it, or will soon."""

    request: Request


@dataclass(frozen=True)
class Retried:
    """Something failed that jobs wait for, and is tried again."""

    retry: Retry
    targets: Sequence[Target]


@dataclass(frozen=True)
class TemplateDone:
    """The cubins that wait for a template can go on, or have failed with it."""

    request: TemplateRequest
    result: TemplateResult
    targets: Sequence[Target]


@dataclass(frozen=True)
class CubinDone:
    """A cubin that jobs asked for is there, or has failed for good."""

    request: CubinRequest
    """As it was asked for."""
    result: CubinResult
    targets: Sequence[Target]


Event = Submitted | Retried | TemplateDone | CubinDone


class Run:
    """The oldest job first; templates before cubins, and the longest first. Starts no worker if the store has all."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        flights: Flights,
        retries: Retries,
        *,
        recache: bool,
        clock: Clock,
    ) -> None:
        self._store = store
        self._executor = executor
        self._flights = flights
        self._retries = retries
        self._recache = recache
        self._clock = clock
        self._foreseen = False
        self.pieces = Pieces()

    @property
    def busy(self) -> bool:
        """Whether anything is still to come."""
        return self.pieces.busy

    @property
    def hungry(self) -> bool:
        """Whether workers will soon have nothing to do; asking starts none."""
        if self.pieces.count(State.LOOK_UP):
            return False
        ready = self.pieces.count(State.READY)
        return not ready or ready < ENOUGH * self._executor.capacity

    def add(self, plan: Plan, job_ids: Iterable[str]) -> None:
        """Takes the plan of some jobs on, oldest first; what it shares with earlier ones is made once."""
        for job_id in job_ids:
            self.pieces.add_job(job_id)
        for request in plan.cubins:
            self.pieces.ask(request, plan.targets[request.key])

    def add_parts(self, plans: Iterable[Plan]) -> None:
        """Takes on what jobs that are here already need instead of something else."""
        for each in plans:
            for request in each.cubins:
                self.pieces.ask(request, each.targets[request.key])

    def release(self, job_ids: Collection[str]) -> None:
        """Forgets jobs that have ended, gives up what nobody else wants, and ends the tools that build it."""
        given_up = list(chain.from_iterable(self.pieces.release(job_id) for job_id in job_ids))
        self._executor.cancel([each.key for each in given_up if each.was_in_flight])
        for each in given_up:
            if each.flew:
                self._flights.land(each.key)
        self._tell_expected()
        self._flights.tell(at_once=not self.busy)  # it may have been the last: then no step follows

    def step(self) -> list[Event]:
        """Goes on for a moment; what came of it."""
        events = self._look_up()
        self._wake()
        self._foresee()
        events += self._submit()
        self._tell_expected()
        quick = bool(events or self.pieces.count(State.LOOK_UP))
        if self.pieces.count(State.FLIGHT):
            for result in self._executor.wait(0.0 if quick else WAIT_SECONDS):
                events += self._take(result)
        elif not quick and self.busy:
            self._clock.sleep(self._pause_seconds())
        self._flights.tell(at_once=not self.busy)
        return events

    def _look_up(self) -> list[Event]:
        """Several at a time: mostly one waits for S3."""
        if not self.pieces.count(State.LOOK_UP):
            return []
        events: list[Event] = []
        end = self._clock.now() + LOOK_SECONDS
        with ThreadPoolExecutor(LOOKERS) as pool:
            while self._clock.now() < end and (some := self.pieces.pop(State.LOOK_UP, LOOKERS)):
                for piece, found in zip(some, pool.map(self._find, [each.request for each in some]), strict=True):
                    events += self._take_found(piece, found)
        return events

    def _find(self, request: Request) -> Result | Failure | None:
        """What the store has; several threads ask at once."""
        if self._recache:
            return None
        try:
            if isinstance(request, CubinRequest):
                return find_cubin(self._store, request.key, whole=request.whole)
            there = find_template(self._store, request.key) is not None
            return TemplateResult(request.key, hit=True) if there else None
        except StoreUnavailableError as error:
            return Failure(Fault.AWAY, str(error))

    def _take_found(self, piece: Piece, found: Result | Failure | None) -> list[Event]:
        if isinstance(found, Failure):
            return self._take_failure(piece, found)
        if found is not None:
            return self._end(piece, found)
        if isinstance(piece, Cubin) and piece.template.state is not State.DONE:
            self.pieces.wait_for_template(piece)
            return []
        self.pieces.move(piece, State.READY)
        if not isinstance(piece, Cubin):
            return []
        request = piece.template.request
        return [TemplateDone(request, TemplateResult(request.key, hit=True), piece.targets_for())]

    def _wake(self) -> None:
        """What has waited for long enough, or is no longer built elsewhere, is looked up again."""
        now = self._clock.now()
        for piece in [each for each in self.pieces.in_state(State.DELAYED) if each.due <= now]:
            self.pieces.move(piece, State.LOOK_UP)
        elsewhere = {piece.key: piece for piece in self.pieces.in_state(State.ELSEWHERE)}
        for key in self._flights.ask_again(elsewhere):
            elsewhere[key].flies = True
            self.pieces.move(elsewhere[key], State.LOOK_UP)

    def _pause_seconds(self) -> float:
        dues = [piece.due for piece in self.pieces.in_state(State.DELAYED)]
        return max(0.0, min(WAIT_SECONDS, min(dues, default=0.0) - self._clock.now())) if dues else WAIT_SECONDS

    def _foresee(self) -> None:
        """Once there is something to build for the first time."""
        if not self._foreseen and self.pieces.count(State.READY):
            self._foreseen = True
            self._executor.foresee([piece.request for piece in self.pieces if piece.state in TO_BUILD])

    def _submit(self) -> list[Event]:
        events: list[Event] = []
        while (
            self.pieces.count(State.READY)
            and (room := self._executor.capacity - self.pieces.count(State.FLIGHT)) > 0
            and (first := self.pieces.pop(State.READY, room))
        ):
            if not all(piece.flies for piece in first):
                first += self.pieces.pop(State.READY, AT_ONCE - len(first))  # a transaction for each would be slow
            granted = self._flights.take_off([piece.key for piece in first if not piece.flies])
            for piece in first:
                piece.flies = piece.flies or piece.key in granted
                if not piece.flies:
                    self.pieces.move(piece, State.ELSEWHERE)
                elif room > 0:
                    room -= 1
                    self.pieces.move(piece, State.FLIGHT)
                    self._executor.submit(piece.request)
                    events.append(Submitted(piece.request))
                else:
                    self.pieces.put_back(piece)
        return events

    def _tell_expected(self) -> None:
        """So that a cluster can grow."""
        self._executor.expect([piece.request for piece in self.pieces.peek(State.READY, EXPECTED)])

    def _take(self, result: Result) -> list[Event]:
        """What follows from a worker's result."""
        piece = self.pieces.in_flight(result.key)
        return self._end(piece, result) if result.failure is None else self._take_failure(piece, result.failure)

    def _take_failure(self, piece: Piece, failure: Failure) -> list[Event]:
        retry = self._retries.after(piece.request, failure, piece.tries, self._clock.now())
        if retry is None:
            return self._end(piece, failed(piece.request, failure))
        again = retry.again
        if isinstance(piece, Cubin) and isinstance(again, CubinRequest) and again.key != piece.key:
            self._land_piece(piece)
            self.pieces.wait_for_lower(piece, again)
        elif retry.delay_seconds:
            piece.due = self._clock.now() + retry.delay_seconds
            self.pieces.move(piece, State.DELAYED)
        else:
            piece.request = again
            self.pieces.move(piece, State.READY)
        return [Retried(retry, piece.targets_for())]

    def _end(self, piece: Piece, result: Result) -> list[Event]:
        self._land_piece(piece)
        if isinstance(piece, Cubin) and isinstance(result, CubinResult):
            return self._end_cubin(piece, result)
        if isinstance(piece, Template) and isinstance(result, TemplateResult):
            return self._end_template(piece, result)
        raise TypeError(f"a {type(piece).__name__} came out as a {type(result).__name__}")

    def _end_template(self, template: Template, result: TemplateResult) -> list[Event]:
        done = TemplateDone(template.request, result, template.targets_for())
        if result.failure is None:
            self.pieces.template_made(template)
            return [done]
        failure = replace(result.failure, message=f"its template failed: {result.failure.message}")
        events: list[Event] = [done]
        for piece in self.pieces.template_failed(template):
            self._land_piece(piece)
            events += self._end_cubin(piece, CubinResult(piece.key, failure))
        return events

    def _end_cubin(self, piece: Cubin, result: CubinResult) -> list[Event]:
        """For those who asked for it, and for those who get it instead of what took too long."""
        instead = self.pieces.cubin_done(piece)
        events: list[Event] = [CubinDone(piece.request, result, piece.targets)] if piece.targets else []
        for each in instead:
            shared = replace(result, instead_of=each.key, hit=result.hit or bool(events))
            events += self._end_cubin(each, shared)
        return events

    def _land_piece(self, piece: Piece) -> None:
        if piece.flies:
            piece.flies = False
            self._flights.land(piece.key)
