"""What an executor is: takes requests, gives results back as they come, in any order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from farm.worker.messages import Request, Result

UNCHECKED = "it is not checked yet"
"""Why a machine gets no work at first."""


Notice = Callable[[str], None]
"""Is told why nothing happens yet."""


def no_notice(_text: str) -> None:
    """For whoever can wait without a word."""


@dataclass(frozen=True)
class WorkerState:
    """One machine that runs requests, and what it has done for this executor."""

    id: str
    node: str
    """The machine's name."""
    cpus: int
    gpus: int
    running: int
    pending: int
    """Given to it, and waiting for one that runs."""
    accepted: int
    """Requests it was given, since the executor started."""
    finished: int
    failed: int
    """Number of finished requests without a result."""
    oldest_seconds: float
    """How long it has had the oldest request that it still has."""
    seen_seconds: float = 0.0
    """How long ago it last said something."""
    reason: str = ""
    """Why it gets no work, if it gets none."""


class Executor(Protocol):
    """Runs requests on workers, which start at the first use of `capacity` or `submit`: one unused costs nothing.

    Raises UnreachableError, in words, where the workers cannot be started or reached.
    """

    @property
    def capacity(self) -> int:
        """How many requests are worth having submitted at a time: enough that no worker waits for the next.

        0 while no machine is there that could come yet. Raises NoWorkerError once that is no longer to be expected.
        """

    def foresee(self, requests: Sequence[Request]) -> None:
        """What will be submitted, as far as is known before the first: what to start may depend on it."""

    def submit(self, request: Request) -> None:
        """Takes a request; its result comes from `wait`, exactly once."""

    def expect(self, requests: Sequence[Request]) -> None:
        """For these there is no room now, and a cluster that grows starts machines; replaces what was said before."""

    def wait(self, timeout_seconds: float) -> list[Result]:
        """The results that have come since the last call; at least one unless the time is over or nothing is submitted.

        A worker that dies is a result too, with a failure whose fault is CRASH.
        """

    def cancel(self, keys: Collection[str]) -> None:
        """Drops these requests and ends the tools that run for them; no result of them comes any more."""

    def running(self) -> Collection[str]:
        """The keys of the requests that are worked on now, as far as is known; the others wait for one of them."""

    def workers(self) -> Sequence[WorkerState]:
        """The machines that run requests; none before the first use. May be called from any thread."""

    def cancel_all(self) -> None:
        """Drops what is submitted and ends the tools that run; no result of it comes any more."""

    def close(self) -> None:
        """Cancels what is left and gives the workers back; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
