"""One task: a template or cubin to be built, its state, its allowed transitions, and the jobs that want it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from farm.scheduler.plan import Target
from farm.scheduler.retry import Attempts
from farm.worker.messages import CubinRequest, Request, TemplateRequest, Turn


class State(StrEnum):
    """State of a task. Finished and abandoned tasks are dropped, except templates that unfinished cubins need."""

    IDLE = "idle"
    """A template that no cubin waits for."""
    LOOK_UP = "look-up"
    """To be looked up in the store next."""
    NEEDS_TEMPLATE = "needs its template"
    READY = "ready"
    ELSEWHERE = "elsewhere"
    """Being built by another coordinator."""
    IN_FLIGHT = "in flight"
    """Submitted to the executor."""
    DELAYED = "delayed"
    """Failed; to be retried later."""
    NEEDS_MASK = "needs its mask's code"
    """Another cubin with the same mask is being built first, so that ptxas runs once for both."""
    NEEDS_LOWER = "needs a lower level"
    """Timed out; being rebuilt at a lower optimisation level."""
    DONE = "done"


ALLOWED_MOVES: Mapping[State, frozenset[State]] = {
    State.IDLE: frozenset({State.LOOK_UP}),
    State.LOOK_UP: frozenset({State.NEEDS_TEMPLATE, State.READY, State.DELAYED, State.DONE, State.IDLE}),
    State.NEEDS_TEMPLATE: frozenset({State.READY, State.DONE}),
    State.READY: frozenset({State.IN_FLIGHT, State.ELSEWHERE, State.NEEDS_MASK, State.IDLE}),
    State.NEEDS_MASK: frozenset({State.READY}),
    State.ELSEWHERE: frozenset({State.LOOK_UP, State.IDLE}),
    State.IN_FLIGHT: frozenset({State.READY, State.DELAYED, State.NEEDS_LOWER, State.DONE, State.IDLE}),
    State.DELAYED: frozenset({State.LOOK_UP, State.IDLE}),
    State.NEEDS_LOWER: frozenset({State.DONE}),
    State.DONE: frozenset(),
}
"""Allowed transitions. Only templates become idle: when they fail, or when no cubin waits for them."""
QUEUED = (State.LOOK_UP, State.READY)
"""States that have a queue, ordered by rank."""
TO_BUILD = frozenset(State) - {State.IDLE, State.NEEDS_LOWER, State.DONE}
"""States of a task whose build is still to be done."""
URGENT = -1.0
"""Order of a task that goes before all jobs."""
Rank = tuple[float, Turn, float, int]


@dataclass(eq=False)
class Task:
    """A template or cubin to be built: one node of the task graph."""

    request: Request
    """The request of the next attempt."""
    number: int
    state: State = State.IDLE
    dependents: dict[str, CubinTask] = field(default_factory=dict)
    """Cubins that wait for this task, by key."""
    attempts: Attempts = field(default_factory=Attempts)
    due: float = 0.0
    """Time of the next attempt of a delayed task."""
    acquired: bool = False
    """Whether this coordinator holds the key in the ledger, so that no other coordinator builds it."""
    order: float = math.inf
    """Order of the oldest job that wants the task; URGENT goes before all jobs."""
    submitted_at: float | None = None
    """Time of the last submission to the executor; None if there was none."""
    runs_since: float | None = None
    """Start of the tool's run, if the executor reported one."""
    queued: Rank | None = None
    """Rank of its valid queue entry."""
    listed: Rank | None = None
    """Rank of its entry in the backlog."""

    @property
    def key(self) -> str:
        return self.request.key

    def acquire(self, crashes: int) -> None:
        """Note that this coordinator holds the key, whose builds have crashed that often on any coordinator."""
        self.acquired = True
        self.attempts.crashes = max(self.attempts.crashes, crashes)

    @property
    def rank(self) -> Rank:
        """Sort key: oldest job first; then by turn, shortest first, and the order of the plan.

        Short tasks go first, so that results come early. A task that would delay the end is expedited (`eta.py`).
        """
        return self.order, self.request.turn, self.request.seconds, self.number

    @property
    def wanted(self) -> bool:
        return bool(self.dependents)

    def all_targets(self) -> list[Target]:
        """All targets that need the task, directly or through tasks that wait for it."""
        return [target for each in self.dependents.values() for target in each.all_targets()]


@dataclass(eq=False)
class TemplateTask(Task):
    """A template; kept after it is made until the last cubin that needs it is done."""

    request: TemplateRequest
    users: dict[str, CubinTask] = field(default_factory=dict)
    """Unfinished cubins that need it, dependents or not."""


@dataclass(eq=False)
class CubinTask(Task):
    """A cubin that jobs want, or its replacement at a lower optimisation level."""

    request: CubinRequest
    template: TemplateTask = field(kw_only=True)
    targets: list[Target] = field(default_factory=list)
    dependency: Task | None = None
    """The task that it waits for: its template, a cubin with its mask, or its replacement at a lower level."""

    @property
    def wanted(self) -> bool:
        return bool(self.targets or self.dependents)

    def all_targets(self) -> list[Target]:
        return self.targets + super().all_targets()
