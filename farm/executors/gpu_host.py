"""GPU hosts: machines that run work on their GPU. The protocol, and this machine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol, Self, TypeVar

from farm.config.settings import Settings

Event = TypeVar("Event")
Work = Callable[[Settings], Generator[Event, None, None]]
"""Work on a GPU; it yields its progress and findings as events. Both are pickled, and the work has no ledger."""


class GpuHost(Protocol):
    """A machine with a GPU, used in a `with` block, whose end cancels the work."""

    @property
    def is_remote(self) -> bool:
        """Whether the work runs on another machine, so that large values must go through the store."""

    def run(self, work: Work[Event]) -> Iterator[Event]:
        """Run work and yield its events. Raises what the work raises, and NoWorkerError if its machine is lost."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


class LocalGpuHost(GpuHost):
    """GPU host of this machine; the work runs in this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._events: Generator[Any, None, None] | None = None

    @property
    def is_remote(self) -> bool:
        """See GpuHost."""
        return False

    def run(self, work: Work[Event]) -> Iterator[Event]:
        """See GpuHost."""
        self._events = events = work(self._settings)
        return events

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._events is not None:
            self._events.close()
