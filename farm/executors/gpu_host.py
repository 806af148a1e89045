"""A machine whose GPU does work: the contract, and this machine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol, Self, TypeVar

from farm.config.settings import Settings

Event = TypeVar("Event")
Work = Callable[[Settings], Generator[Event, None, None]]
"""Tells in events how it goes and what it finds. Both travel: they can be pickled, and the work uses no ledger."""


class GpuHost(Protocol):
    """A machine with a GPU. Use it in a `with` block: its end is the end of the work too."""

    @property
    def is_remote(self) -> bool:
        """Whether the work travels: large values go through the store then."""

    def run(self, work: Work[Event]) -> Iterator[Event]:
        """The work's events as they come. Raises what the work raises, and NoWorkerError where its machine is lost."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


class LocalGpuHost(GpuHost):
    """This machine, in this process."""

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
