"""Runs requests in this process, one at a time: for tests, debugging and machines without Ray."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from codegen.scratch import remove_abandoned
from farm.build import Worker
from farm.executors.contract import Executor, WorkerState
from farm.requests import Request, Result


class InlineExecutor(Executor):
    """Builds when it is waited for; the time limit of `wait` does not interrupt a build."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._submitted: deque[Request] = deque()

    @property
    def capacity(self) -> int:
        """See Executor."""
        return 1

    def submit(self, request: Request) -> None:
        """See Executor."""
        self._submitted.append(request)

    def wait(self, timeout_seconds: float) -> list[Result]:  # noqa: ARG002 - a build takes what it takes
        """One result, after its whole build."""
        return [self._worker.build(self._submitted.popleft())] if self._submitted else []

    def cancel(self, keys: Collection[str]) -> None:
        """See Executor."""
        self._submitted = deque(request for request in self._submitted if request.key not in keys)

    def workers(self) -> Sequence[WorkerState]:
        """See Executor."""
        return ()

    def cancel_all(self) -> None:
        """See Executor."""
        self._submitted.clear()

    def close(self) -> None:
        """See Executor."""
        self.cancel_all()
        remove_abandoned()
