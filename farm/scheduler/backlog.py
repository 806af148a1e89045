"""The backlog: tasks that are still to be built and not submitted, shortest first in each group, with running sums."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from farm.scheduler.task import TO_BUILD, Rank, State, Task
from farm.worker.messages import Turn

Place = tuple[float, Turn]
"""A group's place in the queue: the order of its tasks, and their turn."""


@dataclass
class Group:
    """Unsubmitted tasks of one order and turn; never empty."""

    seconds: float = 0.0
    """Sum of their predicted seconds."""
    _ranked: list[tuple[float, int, Task]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._ranked)

    def __iter__(self) -> Iterator[Task]:
        """The tasks, shortest first."""
        return (task for _, _, task in self._ranked)

    def __reversed__(self) -> Iterator[Task]:
        """The tasks, longest first."""
        return (task for _, _, task in reversed(self._ranked))

    @property
    def longest_seconds(self) -> float:
        """Predicted seconds of the longest task."""
        return self._ranked[-1][0]

    def add(self, rank: Rank, task: Task) -> None:
        """Add a task of that rank."""
        _, _, seconds, number = rank
        insort(self._ranked, (seconds, number, task))
        self.seconds += seconds

    def remove(self, rank: Rank) -> None:
        """Remove the task that was added with that rank."""
        _, _, seconds, number = rank
        del self._ranked[bisect_left(self._ranked, (seconds, number), key=lambda each: each[:2])]
        self.seconds -= seconds


class Backlog:
    """Groups of unsubmitted tasks. An update costs the same for any number of jobs."""

    def __init__(self) -> None:
        self._groups: dict[Place, Group] = {}

    def update(self, task: Task, *, removed: bool = False) -> None:
        """Follow a change of a task's state, request or order, or its removal from the graph."""
        waits = not removed and task.state in TO_BUILD and task.state is not State.IN_FLIGHT
        rank = task.rank if waits else None
        if rank == task.listed:
            return
        if task.listed is not None:
            place = task.listed[:2]
            group = self._groups[place]
            group.remove(task.listed)
            if not group:
                del self._groups[place]
        if rank is not None:
            self._groups.setdefault(rank[:2], Group()).add(rank, task)
        task.listed = rank

    def groups(self) -> list[tuple[Place, Group]]:
        """All groups, in the order in which they will be submitted."""
        return sorted(self._groups.items(), key=lambda item: item[0])
