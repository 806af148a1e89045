"""The process executor: runs requests in processes of this machine, without Ray."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Condition, Lock, Thread

from codegen.toolchain.temp_folders import remove_abandoned
from farm.config.build_id import program_path
from farm.config.settings import Settings
from farm.errors import UsageError
from farm.executors.contract import Executor, WorkerState
from farm.store.contract import Store
from farm.store.memory import MemoryStore
from farm.worker.messages import Failure, Fault, Request, Result, failed

QUEUED_PER_PROCESS = 3
"""Queued requests per process: it picks one whose template it has parsed already, if there is one."""
_CONTAINER_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
_PR_SET_PDEATHSIG = 1
_START = "import sys; sys.path[:0] = sys.argv[2:]; from farm.worker.process import main; main(int(sys.argv[1]))"


class WorkerProcess:
    """A worker process that builds one request at a time; it can be started again after its death."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = Lock()
        """One thread starts the process and sends requests, another may kill it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self.templates: set[str] = set()
        """Keys of the templates that the process has parsed."""

    def start(self) -> None:
        """Start the process unless it runs. Raises OSError."""
        with self._lock:
            if self._process is not None:
                return
            ours, theirs = Pipe()
            with theirs:
                descriptor = theirs.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _START, str(descriptor), *program_path()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(descriptor,),
                    start_new_session=True,  # Ctrl-C reaches the command only, which then ends its workers
                )
            self._connection = ours
        ours.send(self._settings)

    def build(self, request: Request) -> Result:
        """Build a request in the process; a failure with the fault CRASH if the process dies."""
        connection = self._connection
        try:
            if connection is None:
                raise EOFError
            connection.send(request)
            self.templates.add(request.template_key)
            result: Result = connection.recv()
            return result
        except (EOFError, OSError):
            return failed(request, Failure(Fault.CRASH, f"its worker died: {self._reap()}"))

    def kill(self) -> None:
        """Kill the process; the kernel then kills its tools."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """Kill the process and wait for its end; not to be called during `build`."""
        self.kill()
        self._reap()

    def _reap(self) -> str:
        """Reap a dead or dying process; returns how it ended."""
        with self._lock:
            process, self._process = self._process, None
            connection, self._connection = self._connection, None
        self.templates.clear()
        if connection is not None:
            connection.close()
        if process is None:
            return "it could not be started"
        process.kill()  # it may only have closed its connection
        status = process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"


@dataclass(eq=False)
class _Running:
    """A request that runs in a process."""

    request: Request
    process: WorkerProcess
    since: float = field(default_factory=time.monotonic)


class ProcessExecutor(Executor):
    """Has one thread per process, which sends the next request without waiting for the coordinator."""

    def __init__(self, settings: Settings, store: Store) -> None:
        if isinstance(store, MemoryStore):
            raise UsageError(
                "other processes cannot read a store in memory: use a store in a folder, or the inline executor"
            )
        self._settings = replace(settings, database_url="")
        """Settings of the workers, which use no database."""
        self._changed = Condition()
        """Guards all attributes below."""
        self._processes: list[WorkerProcess] = []
        self._threads: list[Thread] = []
        self._waiting: dict[str, Request] = {}
        """Queued requests by key, in order of submission."""
        self._running: dict[str, _Running] = {}
        self._results: list[Result] = []
        self._closed = False
        self._accepted = self._finished = self._failed = 0

    @property
    def capacity(self) -> int:
        """See Executor."""
        return (1 + QUEUED_PER_PROCESS) * self._settings.jobs

    def foresee(self, requests: Sequence[Request]) -> None:
        """See Executor."""
        for _ in requests[: self._settings.jobs]:
            self._start_another()

    def submit(self, request: Request) -> None:
        """See Executor."""
        with self._changed:
            self._accepted += 1
            self._waiting[request.key] = request
            self._changed.notify_all()
        if len(self._waiting) + len(self._running) > len(self._threads):
            self._start_another()

    def expect(self, requests: Sequence[Request]) -> None:
        """See Executor; the number of processes is fixed."""

    def wait(self, timeout_seconds: float) -> list[Result]:
        """See Executor."""
        with self._changed:
            self._changed.wait_for(lambda: self._results or not (self._waiting or self._running), timeout_seconds)
            results, self._results = self._results, []
        return results

    def cancel(self, keys: Collection[str]) -> None:
        """See Executor."""
        with self._changed:
            self._results = [result for result in self._results if result.key not in keys]
            for key in self._waiting.keys() & set(keys):
                del self._waiting[key]
            for key in self._running.keys() & set(keys):
                self._running.pop(key).process.kill()

    def running(self) -> Collection[str]:
        """See Executor."""
        with self._changed:
            return list(self._running)

    def workers(self) -> Sequence[WorkerState]:
        """See Executor."""
        with self._changed:
            if not self._threads:
                return ()
            now = time.monotonic()
            return [
                WorkerState(
                    id=f"{os.getpid()}@{socket.gethostname()}",
                    node=socket.gethostname(),
                    cpus=self._settings.jobs,
                    gpus=0,
                    running=len(self._running),
                    pending=len(self._waiting),
                    accepted=self._accepted,
                    finished=self._finished,
                    failed=self._failed,
                    oldest_seconds=max((now - each.since for each in self._running.values()), default=0.0),
                )
            ]

    def cancel_all(self) -> None:
        """See Executor."""
        with self._changed:
            self.cancel([*self._waiting, *self._running, *(result.key for result in self._results)])

    def close(self) -> None:
        """See Executor."""
        with self._changed:
            self._closed = True
            self.cancel_all()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        remove_abandoned()

    def _start_another(self) -> None:
        if len(self._threads) < self._settings.jobs:
            process = WorkerProcess(self._settings)
            self._processes.append(process)
            self._threads.append(Thread(target=self._serve, args=(process,), name="process", daemon=True))
            self._threads[-1].start()

    def _serve(self, process: WorkerProcess) -> None:
        """Send requests to one process until the executor is closed."""
        _try_to_start(process)
        while (running := self._next(process)) is not None:
            result = process.build(running.request)
            with self._changed:
                cancelled = self._running.get(result.key) is not running
                if not cancelled:
                    del self._running[result.key]
                    self._results.append(result)
                    self._finished += result.failure is None
                    self._failed += result.failure is not None
                self._changed.notify_all()
            if cancelled:
                process.end()  # killed, even if it was quick enough to answer: it shall not take another request
        process.end()

    def _next(self, process: WorkerProcess) -> _Running | None:
        """Wait for the next request of a process; None once the executor is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._choose(process) is not None)
            _try_to_start(process)
            with self._changed:
                if self._closed:
                    return None
                if (request := self._choose(process)) is not None:
                    running = _Running(self._waiting.pop(request.key), process)
                    self._running[request.key] = running
                    return running

    def _choose(self, process: WorkerProcess) -> Request | None:
        """The next request for a process, among those that fit into memory.

        The first turn; then a cubin whose template this process has parsed, or no other process has.
        """
        room = memory_bytes() - sum(each.request.memory_bytes for each in self._running.values())
        fit = [each for each in self._waiting.values() if each.memory_bytes <= room or not self._running]
        others = set[str]().union(*(each.templates for each in self._processes if each is not process))
        return min(
            fit,
            key=lambda each: (each.turn, each.template_key not in process.templates, each.template_key in others),
            default=None,
        )


def _try_to_start(process: WorkerProcess) -> None:
    with suppress(OSError):  # then its next request fails and is retried
        process.start()


def memory_bytes() -> int:
    """Memory of this machine, or of the container in which this process runs."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # "max" means no limit
            limits.append(int(path.read_text()))
    return min(limits)


def end_with_parent(parent: int) -> None:
    """Initializer of a pool's processes: ignore Ctrl-C, and end when the parent process ends, for any reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
