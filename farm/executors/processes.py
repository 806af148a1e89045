"""Runs requests in processes of this machine, one for each build at once: all cores, without Ray."""

from __future__ import annotations

import os
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
from farm.worker.messages import Failure, Fault, Request, Result, TemplateRequest, failed

WAITING = 3
"""Requests for each process beside the one that it works on: among them it may find one whose template it has read."""
_CONTAINER_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
_START = "import sys; sys.path[:0] = sys.argv[2:]; from farm.worker.process import main; main(int(sys.argv[1]))"


class WorkerProcess:
    """A process that builds one request at a time, and is started again after it has died."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = Lock()
        """One thread starts the process and builds by it, another may kill it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self.templates: set[str] = set()
        """Keys of those that it has read."""

    def start(self) -> None:
        """Starts the process, if it does not run. Raises OSError."""
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
                    start_new_session=True,  # Ctrl-C is for the command, which then ends its workers
                )
            self._connection = ours
        ours.send(self._settings)

    def build(self, request: Request) -> Result:
        """What comes of it; a failure whose fault is CRASH where the process dies."""
        connection = self._connection
        try:
            if connection is None:
                raise EOFError
            connection.send(request)
            self.templates.add(request.template_key)
            result: Result = connection.recv()
            return result
        except (EOFError, OSError):
            return failed(request, Failure(Fault.CRASH, f"its worker died: {self._gone()}"))

    def kill(self) -> None:
        """Ends the process at once; the kernel ends its tools with it."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """Kills it, and waits until it is gone; not while it builds."""
        self.kill()
        self._gone()

    def _gone(self) -> str:
        """Forgets the process, which is dead or dying; how it ended, in words."""
        with self._lock:
            process, self._process = self._process, None
            connection, self._connection = self._connection, None
        self.templates.clear()
        if connection is not None:
            connection.close()
        if process is None:
            return "it could not be started"
        process.kill()  # one that only closed its connection
        status = process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"


@dataclass(eq=False)
class _Running:
    """A request that a process works on."""

    request: Request
    process: WorkerProcess
    since: float = field(default_factory=time.monotonic)


class ProcessExecutor(Executor):
    """A thread for each process gives it the next request at once, whatever the coordinator does meanwhile."""

    def __init__(self, settings: Settings, store: Store) -> None:
        if isinstance(store, MemoryStore):
            raise UsageError(
                "a store in memory is not seen by other processes: use a store in a folder, or the inline executor"
            )
        self._settings = replace(settings, database_url="")
        """Workers use no database."""
        self._changed = Condition()
        """Holds all that follows together."""
        self._processes: list[WorkerProcess] = []
        self._threads: list[Thread] = []
        self._waiting: dict[str, Request] = {}
        """By key, in the order in which they came."""
        self._running: dict[str, _Running] = {}
        self._results: list[Result] = []
        self._closed = False
        self._accepted = self._finished = self._failed = 0

    @property
    def capacity(self) -> int:
        """See Executor."""
        return (1 + WAITING) * self._settings.jobs

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
        """See Executor; one machine does not grow."""

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
        """Gives one process its requests until the executor is closed."""
        _try_to_start(process)
        while (running := self._next(process)) is not None:
            result = process.build(running.request)
            with self._changed:
                if self._running.get(result.key) is running:  # else it was cancelled
                    del self._running[result.key]
                    self._results.append(result)
                    self._finished += result.failure is None
                    self._failed += result.failure is not None
                self._changed.notify_all()
        process.end()

    def _next(self, process: WorkerProcess) -> _Running | None:
        """Waits until there is a request for the process; None: the executor is closed."""
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
        """The first one, or one whose template the process has read, or else one whose template no other has."""
        room = memory_bytes() - sum(each.request.memory_bytes for each in self._running.values())
        fit = [each for each in self._waiting.values() if each.memory_bytes <= room or not self._running]
        if not fit or isinstance(fit[0], TemplateRequest):
            return fit[0] if fit else None
        others = set[str]().union(*(each.templates for each in self._processes if each is not process))
        return min(
            fit, key=lambda request: (request.template_key not in process.templates, request.template_key in others)
        )


def _try_to_start(process: WorkerProcess) -> None:
    with suppress(OSError):  # what it is given fails then, and is tried again
        process.start()


def memory_bytes() -> int:
    """Of this machine, or of the container in which this process runs."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # "max": none
            limits.append(int(path.read_text()))
    return min(limits)
