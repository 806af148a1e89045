"""One template or cubin that is still to come: where it stands, which moves it may make, and who wants it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from farm.scheduler.plan import Target
from farm.scheduler.retry import Tries
from farm.worker.messages import CubinRequest, Request, TemplateRequest


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
TO_BUILD = frozenset(State) - {State.RESTS, State.LOWER, State.DONE}
"""States of what somebody still has to build."""
URGENT = -1.0
"""The order of what must not wait."""
Rank = tuple[float, bool, float, int]


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
    """Order of the oldest job that wants it; less than any job's if it must not wait."""
    runs_since: float | None = None
    """When a tool began to work on it, as far as the executor tells."""
    queued: Rank | None = None
    """Under which rank it stands in a queue."""

    @property
    def key(self) -> str:
        return self.request.key

    @property
    def rank(self) -> Rank:
        """Oldest job first; of one job, templates before cubins, then what takes longest, then the plan's order."""
        return self.order, isinstance(self.request, CubinRequest), -self.request.seconds, self.number

    @property
    def wanted(self) -> bool:
        return bool(self.waiting)

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
