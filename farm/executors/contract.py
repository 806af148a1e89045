"""The executor protocol: takes requests, returns results in any order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from farm.worker.messages import Request, Result

UNCHECKED = "not checked yet"
"""Reason of a machine that gets no work because its tools are not known yet."""


Notice = Callable[[str], None]
"""Callback for messages about what is waited for."""


def no_notice(_text: str) -> None:
    """Default callback: ignore notices."""


@dataclass(frozen=True)
class WorkerState:
    """State of one machine that runs requests of this executor."""

    id: str
    node: str
    """Host name."""
    cpus: int
    gpus: int
    running: int
    pending: int
    """Requests assigned to it that do not run yet."""
    accepted: int
    """Requests assigned to it since the executor started."""
    finished: int
    """Requests that succeeded."""
    failed: int
    """Requests that failed."""
    oldest_seconds: float
    """Age of its oldest unfinished request."""
    seen_seconds: float = 0.0
    """Time since it was last seen alive."""
    reason: str = ""
    """Why it gets no work, or does none now; empty if it does."""


class Executor(Protocol):
    """Runs requests on workers, which start at the first use of `capacity` or `submit`.

    Raises UnreachableError if the workers cannot be started or reached.
    """

    @property
    def local(self) -> bool:
        """Whether builds share this machine, so that one that exhausts it may end this process too."""
        return True

    @property
    def capacity(self) -> int:
        """Number of requests worth submitting at a time, so that no worker idles.

        0 while waiting for the first machine. Raises NoWorkerError when the wait is over.
        """

    def foresee(self, requests: Sequence[Request]) -> None:
        """Announce the known work once, before the first `submit`; the choice of workers may depend on it."""

    def submit(self, request: Request) -> None:
        """Submit a request; `wait` returns its result exactly once."""

    def expect(self, requests: Sequence[Request]) -> None:
        """Announce requests beyond the capacity, for which a cluster may grow; replaces the last announcement."""

    def wait(self, timeout_seconds: float) -> list[Result]:
        """Results since the last call; waits for one until the timeout, unless no request is submitted.

        The death of a worker is a result with the fault CRASH.
        """

    def cancel(self, keys: Collection[str]) -> None:
        """Cancel requests by key and end their tools; `wait` will not return their results."""

    def running(self) -> Collection[str]:
        """Keys of the requests that run now, as far as known; other submitted requests are queued."""

    def workers(self) -> Sequence[WorkerState]:
        """States of the machines, empty before the first use. Thread-safe."""

    def cancel_all(self) -> None:
        """Cancel all requests and end their tools."""

    def close(self) -> None:
        """Cancel all requests and release the workers; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
