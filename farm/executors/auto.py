"""The automatic executor: processes for short work, Ray for all other work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from farm.executors.contract import Executor, WorkerState
from farm.worker.messages import Request, Result

SHORT_SECONDS = 60.0
"""Predicted time on all cores below which work is short. Ray takes several seconds to start and to end."""


class AutomaticExecutor(Executor):
    """Chooses between processes of this machine and Ray by the length of the first announced work, for good."""

    def __init__(self, processes: Executor, ray: Callable[[], Executor], jobs: int) -> None:
        self._processes = processes
        self._ray = ray
        self._jobs = jobs
        """Parallel builds on this machine."""
        self._chosen: Executor | None = None

    @property
    def local(self) -> bool:
        """See Executor."""
        return self._chosen is None or self._chosen.local

    @property
    def capacity(self) -> int:
        """See Executor."""
        return self._executor.capacity

    def foresee(self, requests: Sequence[Request]) -> None:
        """See Executor."""
        if self._chosen is None:
            short = sum(request.seconds for request in requests) <= SHORT_SECONDS * self._jobs
            self._chosen = self._processes if short else self._ray()
        self._chosen.foresee(requests)

    @property
    def _executor(self) -> Executor:
        """The chosen executor; Ray if the work is not known yet, as in a serving coordinator."""
        if self._chosen is None:
            self._chosen = self._ray()
        return self._chosen

    def submit(self, request: Request) -> None:
        """See Executor."""
        self._executor.submit(request)

    def expect(self, requests: Sequence[Request]) -> None:
        """See Executor."""
        if self._chosen is not None:
            self._chosen.expect(requests)

    def wait(self, timeout_seconds: float) -> list[Result]:
        """See Executor."""
        return [] if self._chosen is None else self._chosen.wait(timeout_seconds)

    def cancel(self, keys: Collection[str]) -> None:
        """See Executor."""
        if self._chosen is not None:
            self._chosen.cancel(keys)

    def running(self) -> Collection[str]:
        """See Executor."""
        return () if self._chosen is None else self._chosen.running()

    def workers(self) -> Sequence[WorkerState]:
        """See Executor."""
        return () if self._chosen is None else self._chosen.workers()

    def cancel_all(self) -> None:
        """See Executor."""
        if self._chosen is not None:
            self._chosen.cancel_all()

    def close(self) -> None:
        """See Executor."""
        if self._chosen is not None:
            self._chosen.close()
