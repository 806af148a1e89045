"""All that is still to come: one piece for each key, where it stands, and who wants it.

A cubin is wanted by the jobs that asked for it, and by cubins that are built at its lower level instead; a template by
the cubins that wait for it. Whatever nobody wants any more is given up with all that it alone had wanted. Pure: nothing
here touches a store, a worker or the ledger.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from farm.coordination.plan import Target
from farm.coordination.retries import Tries
from farm.worker.requests import CubinRequest, Request, TemplateRequest


class State(StrEnum):
    """Where a piece stands. What is done or given up is kept no longer, but for templates that cubins to come need."""

    RESTS = "rests"
    """A template that no cubin waits for."""
    LOOK_UP = "look-up"
    """The store is asked next."""
    TEMPLATE = "waits for its template"
    READY = "ready"
    ELSEWHERE = "elsewhere"
    """Another coordinator builds it."""
    FLIGHT = "in flight"
    """A worker has it."""
    DELAYED = "delayed"
    """It failed, and is tried again later."""
    LOWER = "lower"
    """It took too long, and the same at a lower level is built instead."""
    DONE = "done"


ALLOWED_MOVES: Mapping[State, frozenset[State]] = {
    State.RESTS: frozenset({State.LOOK_UP}),
    State.LOOK_UP: frozenset({State.TEMPLATE, State.READY, State.DELAYED, State.DONE, State.RESTS}),
    State.TEMPLATE: frozenset({State.READY, State.DONE}),
    State.READY: frozenset({State.FLIGHT, State.ELSEWHERE, State.RESTS}),
    State.ELSEWHERE: frozenset({State.LOOK_UP, State.RESTS}),
    State.FLIGHT: frozenset({State.READY, State.DELAYED, State.LOWER, State.DONE, State.RESTS}),
    State.DELAYED: frozenset({State.LOOK_UP, State.RESTS}),
    State.LOWER: frozenset({State.DONE}),
    State.DONE: frozenset(),
}
"""From a state to the states a piece may move to. Only templates rest: when they have failed or nobody waits."""
QUEUED = (State.LOOK_UP, State.READY)
"""What stands in a queue, and is taken from it in the order of rank."""
Rank = tuple[float, bool, int, int]


@dataclass(eq=False)
class Piece:
    """One template or cubin on its way."""

    request: Request
    """As it is tried next."""
    number: int
    state: State = State.RESTS
    waiting: dict[str, Cubin] = field(default_factory=dict)
    """Pieces that wait for this one, by their keys."""
    tries: Tries = field(default_factory=Tries)
    due: float = 0.0
    """When it is tried again, if it is delayed."""
    flies: bool = False
    """No other coordinator builds it: the ledger has the key as ours."""
    order: float = math.inf
    """Order of the oldest job that wants it."""
    queued: Rank | None = None
    """Under which rank it stands in a queue."""

    @property
    def key(self) -> str:
        return self.request.key

    @property
    def rank(self) -> Rank:
        """Oldest job first; of one job, templates before cubins, then what takes longest, then the plan's order."""
        return self.order, isinstance(self.request, CubinRequest), -self.request.cost, self.number

    @property
    def wanted(self) -> bool:
        return bool(self.waiting)

    @property
    def begun(self) -> bool:
        """Whether somebody builds it, here or elsewhere, or the same at a lower level."""
        return self.state in (State.FLIGHT, State.ELSEWHERE, State.LOWER)

    def targets_for(self) -> list[Target]:
        """All for whom it is built, directly or not."""
        return [target for each in self.waiting.values() for target in each.targets_for()]


@dataclass(eq=False)
class Template(Piece):
    """One that cubins need; kept, once it is there, as long as one of them is to come."""

    request: TemplateRequest
    users: dict[str, Cubin] = field(default_factory=dict)
    """Cubins that are to come and need it, whether they wait for it or not."""


@dataclass(eq=False)
class Cubin(Piece):
    """One that jobs asked for, or that is built instead of such a one."""

    request: CubinRequest
    template: Template = field(kw_only=True)
    targets: list[Target] = field(default_factory=list)
    awaits: Piece | None = None
    """Its template, or the same cubin at a lower level."""

    @property
    def wanted(self) -> bool:
        return bool(self.targets or self.waiting)

    def targets_for(self) -> list[Target]:
        return self.targets + super().targets_for()


@dataclass(frozen=True)
class GivenUp:
    """What nobody wants any more."""

    key: str
    flew: bool
    """The ledger still has it as ours."""
    was_in_flight: bool
    """A worker still has it."""


class Pieces:
    """The pieces of all jobs that run. Every change of a state passes through `move`."""

    def __init__(self) -> None:
        self._pieces: dict[str, Piece] = {}
        self._in: dict[State, dict[str, Piece]] = {state: {} for state in State}
        self._of_job: dict[str, dict[str, Cubin]] = {}
        self._orders: dict[str, int] = {}
        self._queues: dict[State, list[tuple[Rank, Piece]]] = {state: [] for state in QUEUED}
        """Heaps; entries of pieces that have moved on, or have another rank now, are passed over."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces.values())

    @property
    def busy(self) -> bool:
        """Whether anything is to come."""
        return len(self._pieces) > len(self._in[State.RESTS]) + len(self._in[State.DONE])

    def count(self, state: State) -> int:
        """How many are in a state."""
        return len(self._in[state])

    def in_state(self, state: State) -> list[Piece]:
        """Those, in the order in which they came into it."""
        return list(self._in[state].values())

    def in_flight(self, key: str) -> Piece:
        """The piece that a worker has under this key."""
        return self._in[State.FLIGHT][key]

    def add_job(self, job_id: str) -> None:
        """One that is younger than all before."""
        self._orders[job_id] = next(self._numbers)
        self._of_job[job_id] = {}

    def ask(self, request: CubinRequest, targets: Sequence[Target]) -> Cubin:
        """Jobs, which were added before, want a cubin; one that is on its way already is made once."""
        piece = self._cubin(request)
        piece.targets += targets
        for target in targets:
            self._of_job[target.job][piece.key] = piece
        self._hurry(piece, min(self._orders[target.job] for target in targets))
        return piece

    def release(self, job_id: str) -> list[GivenUp]:
        """Forgets a job, and gives up what is built for it alone."""
        given_up: list[GivenUp] = []
        self._orders.pop(job_id, None)
        for piece in self._of_job.pop(job_id, {}).values():
            piece.targets = [target for target in piece.targets if target.job != job_id]
            self._lose(piece, given_up)
        return given_up

    def move(self, piece: Piece, state: State) -> None:
        """From one state to the next."""
        if state not in ALLOWED_MOVES[piece.state]:
            raise AssertionError(f"a piece cannot move from '{piece.state}' to '{state}'")
        del self._in[piece.state][piece.key]
        piece.state, piece.queued = state, None
        self._in[state][piece.key] = piece
        self._queue(piece)

    def pop(self, state: State, count: int) -> list[Piece]:
        """Takes up to so many out of a queue, those of the highest rank; they are to be moved on, or put back."""
        heap, found = self._queues[state], list[Piece]()
        while heap and len(found) < count:
            rank, piece = heapq.heappop(heap)
            if piece.state is state and piece.queued == rank:
                piece.queued = None
                found.append(piece)
        return found

    def peek(self, state: State, count: int) -> list[Piece]:
        """At most so many of those in a queue, from near its front; they stay there."""
        return [piece for _, piece in self._queues[state][:count] if piece.state is state]

    def put_back(self, piece: Piece) -> None:
        """It was taken out of its queue, and stays in its state."""
        self._queue(piece)

    def wait_for_template(self, piece: Cubin) -> None:
        """Until its template, which is not there yet, has come."""
        self._wait(piece, piece.template, State.TEMPLATE)
        if piece.template.state is State.RESTS:
            self.move(piece.template, State.LOOK_UP)

    def wait_for_lower(self, piece: Cubin, lower: CubinRequest) -> None:
        """Until the same cubin at a lower level has come, which somebody may want anyway."""
        self._wait(piece, self._cubin(lower), State.LOWER)

    def template_made(self, template: Template) -> None:
        """It is there, and the cubins that waited for it are ready."""
        self.move(template, State.DONE)
        for piece in self._end_waiting(template):
            self.move(piece, State.READY)

    def template_failed(self, template: Template) -> list[Cubin]:
        """Gives the cubins that waited for it: they have failed too. Who needs it later tries again."""
        self._rest(template)
        return self._end_waiting(template)

    def cubin_done(self, piece: Cubin) -> list[Cubin]:
        """It is there, or has failed. Gives those instead of which it was built: they are done with it."""
        self.move(piece, State.DONE)
        instead = self._end_waiting(piece)
        self._forget(piece, [])
        return instead

    def _cubin(self, request: CubinRequest) -> Cubin:
        piece = self._pieces.get(request.key)
        if isinstance(piece, Cubin):
            return piece
        template = self._pieces.get(request.template.key)
        if not isinstance(template, Template):
            template = Template(request.template, next(self._numbers))
            self._enter(template)
        piece = Cubin(request, next(self._numbers), State.LOOK_UP, template=template)
        template.users[piece.key] = piece
        self._enter(piece)
        return piece

    def _enter(self, piece: Piece) -> None:
        self._pieces[piece.key] = piece
        self._in[piece.state][piece.key] = piece
        self._queue(piece)

    def _queue(self, piece: Piece) -> None:
        if piece.state in QUEUED and piece.queued != piece.rank:
            piece.queued = piece.rank
            heapq.heappush(self._queues[piece.state], (piece.queued, piece))

    def _wait(self, piece: Cubin, other: Piece, state: State) -> None:
        self.move(piece, state)
        piece.awaits = other
        other.waiting[piece.key] = piece
        self._hurry(other, piece.order)

    def _end_waiting(self, piece: Piece) -> list[Cubin]:
        waiting, piece.waiting = list(piece.waiting.values()), {}
        piece.order = math.inf
        for each in waiting:
            each.awaits = None
        return waiting

    def _hurry(self, piece: Piece, order: float) -> None:
        """A job of this order wants it too."""
        if order < piece.order:
            self._set_order(piece, order)

    def _set_order(self, piece: Piece, order: float) -> None:
        piece.order = order
        self._queue(piece)
        if isinstance(piece, Cubin) and piece.awaits is not None:
            self._hurry(piece.awaits, order)

    def _lose(self, piece: Piece, given_up: list[GivenUp]) -> None:
        """Somebody who wanted it does so no more."""
        if piece.wanted:
            targets = piece.targets if isinstance(piece, Cubin) else []
            orders = [self._orders[target.job] for target in targets]
            order = min([*orders, *(each.order for each in piece.waiting.values())])
            if order != piece.order:
                self._set_order(piece, order)
            return
        given_up.append(GivenUp(piece.key, piece.flies, piece.state is State.FLIGHT))
        if isinstance(piece, Cubin):
            self._forget(piece, given_up)
        elif isinstance(piece, Template):
            self._rest(piece)

    def _rest(self, template: Template) -> None:
        self.move(template, State.RESTS)
        template.order = math.inf
        template.tries = Tries()
        template.flies = False

    def _forget(self, piece: Cubin, given_up: list[GivenUp]) -> None:
        """It is done, or given up: so may be what it waited for, and what is kept of its template."""
        self._remove(piece)
        for target in piece.targets:
            if target.job in self._of_job:
                self._of_job[target.job].pop(piece.key, None)
        if (awaits := piece.awaits) is not None:
            piece.awaits = None
            del awaits.waiting[piece.key]
            self._lose(awaits, given_up)
        del piece.template.users[piece.key]
        if not piece.template.users:
            self._remove(piece.template)

    def _remove(self, piece: Piece) -> None:
        piece.queued = None
        del self._pieces[piece.key], self._in[piece.state][piece.key]
