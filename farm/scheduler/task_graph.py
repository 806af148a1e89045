"""All that is still to come: one piece for each key, where it stands, and who wants it.

A cubin is wanted by the jobs that asked for it, and by cubins that are built at its lower level instead; a template by
the cubins that wait for it. Whatever nobody wants any more is given up with all that it alone had wanted. Pure: nothing
here touches a store, a worker or the ledger.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farm.scheduler.plan import Target
from farm.scheduler.retry import Tries
from farm.scheduler.task import ALLOWED_MOVES, QUEUED, URGENT, Cubin, Piece, Rank, State, Template
from farm.worker.messages import CubinRequest


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

    def ask(self, request: CubinRequest, targets: Sequence[Target]) -> None:
        """Jobs, which were added before, want a cubin; one that is on its way already is made once."""
        piece = self._cubin(request)
        piece.targets += targets
        for target in targets:
            self._of_job[target.job][piece.key] = piece
        self._hurry(piece, min(self._orders[target.job] for target in targets))

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
        piece.state, piece.queued, piece.runs_since = state, None, None
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

    def hurry(self, piece: Piece) -> None:
        """It goes before what older jobs want."""
        self._hurry(piece, URGENT)

    def at_work(self) -> dict[str, bool]:
        """The jobs for which something is built now, here or elsewhere, and whether that is a cubin.

        What several jobs want is built for the oldest of them.
        """
        found: dict[str, bool] = {}
        for state in (State.FLIGHT, State.ELSEWHERE):
            for piece in self._in[state].values():
                job_id = self.oldest(piece)
                found[job_id] = found.get(job_id, False) or isinstance(piece, Cubin)
        return found

    def oldest(self, piece: Piece) -> str:
        """The oldest of the jobs for which it is built."""
        return min((target.job for target in piece.targets_for()), key=self._orders.__getitem__)

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
