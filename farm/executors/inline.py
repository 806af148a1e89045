"""The inline executor: one request at a time in this process, for tests and debugging."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codegen.toolchain.temp_folders import remove_abandoned
from codegen.toolchain.tools import cancel_tools_on
from farm.executors.contract import Executor, WorkerState
from farm.worker.messages import Request, Result

if TYPE_CHECKING:
    from farm.worker.build import Worker


@dataclass(frozen=True)
class _Running:
    """A request that runs or is queued."""

    result: Future[Result]
    unwanted: threading.Event


class InlineExecutor(Executor):
    """Builds in one thread, so that the coordinator can notice a cancelled job while a tool runs."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inline")  # starts with the first request
        self._running: dict[str, _Running] = {}
        """Submitted requests by key, in order of submission."""

    @property
    def capacity(self) -> int:
        """See Executor."""
        return 2  # one runs, one is queued

    def foresee(self, requests: Sequence[Request]) -> None:
        """See Executor; without effect."""

    def submit(self, request: Request) -> None:
        """See Executor."""
        unwanted = threading.Event()
        self._running[request.key] = _Running(self._thread.submit(self._build, request, unwanted), unwanted)

    def _build(self, request: Request, unwanted: threading.Event) -> Result:
        with cancel_tools_on(unwanted):
            return self._worker.build(request)

    def expect(self, requests: Sequence[Request]) -> None:
        """See Executor; there is one process."""

    def wait(self, timeout_seconds: float) -> list[Result]:
        """See Executor."""
        if not self._running:
            return []
        wait([each.result for each in self._running.values()], timeout_seconds, FIRST_COMPLETED)
        done = [key for key, each in self._running.items() if each.result.done()]
        return [self._running.pop(key).result.result() for key in done]

    def cancel(self, keys: Collection[str]) -> None:
        """See Executor."""
        for key in self._running.keys() & set(keys):
            running = self._running.pop(key)
            running.result.cancel()
            running.unwanted.set()

    def running(self) -> Collection[str]:
        """See Executor."""
        return list(self._running)[:1]

    def workers(self) -> Sequence[WorkerState]:
        """See Executor."""
        return ()

    def cancel_all(self) -> None:
        """See Executor."""
        self.cancel(list(self._running))

    def close(self) -> None:
        """See Executor."""
        self.cancel_all()
        self._thread.shutdown()
        remove_abandoned()
