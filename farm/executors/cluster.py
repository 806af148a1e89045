"""Runs requests as Ray tasks, on this machine or on a cluster. The only importer of Ray."""

from __future__ import annotations

import logging
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from codegen.errors import CodegenError
from codegen.toolchain import find_toolchain
from farm.build import Worker
from farm.errors import FarmError, NoWorkerError, UnreachableError, UsageError
from farm.executors.contract import Executor, WorkerState
from farm.requests import Failure, Fault, Request, Result, failed
from farm.settings import Settings, set_environment_defaults
from farm.store import open_store
from farm.store.contract import Store
from farm.store.memory import MemoryStore

OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's least: our bytes travel through the store."""
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A worker that dies leaves its tools to toolchain.py: Ray would kill only the process above them.
    "RAY_kill_child_processes_on_worker_exit": "false",
}
CONNECT_SECONDS = 10.0
SUBMITTED_PER_CPU = 2
"""One runs, one waits, so that no worker idles while its result travels."""


@lru_cache(maxsize=1)
def _worker(settings: Settings) -> Worker:
    """One for the life of Ray's worker process, so that its parsed templates stay."""
    return Worker.of(settings, open_store(settings), find_toolchain(settings.nvcc, settings.ptxas))


def build_request(settings: Settings, request: Request) -> Result:
    """What a Ray task does: the worker's body, with the store and the toolchain that its machine has."""
    try:
        worker = _worker(settings)
    except (CodegenError, FarmError) as error:
        return failed(request, Failure(Fault.FARM, f"a worker cannot start: {error}"))
    return worker.build(request)


class ClusterExecutor(Executor):
    """One Ray task per request. Starts Ray on this machine, or joins the cluster that the settings name."""

    def __init__(self, settings: Settings, store: Store) -> None:
        if isinstance(store, MemoryStore):
            raise UsageError(
                "a store in memory is not seen by Ray's workers: use a store in a folder, or the inline executor"
            )
        self._settings = settings
        self._ray: Any = None
        self._task: Any = None
        self._capacity = 0
        self._started = False
        """By this executor; a Ray that the program around it started is used, and left as it is."""
        self._folder: str | None = None
        """Of a local Ray's sockets and logs."""
        self._running: dict[Any, Request] = {}
        """By Ray's reference to the result to come."""

    @property
    def capacity(self) -> int:
        """See Executor."""
        self._connect()
        return self._capacity

    def submit(self, request: Request) -> None:
        """See Executor."""
        self._connect()
        self._running[self._task.remote(self._settings, request)] = request

    def wait(self, timeout_seconds: float) -> list[Result]:
        """See Executor."""
        references = list(self._running)
        if not references:
            return []
        self._ray.wait(references, num_returns=1, timeout=timeout_seconds)
        ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return [self._result(reference) for reference in ready]

    def cancel(self, keys: Collection[str]) -> None:
        """See Executor."""
        for reference in [each for each, request in self._running.items() if request.key in keys]:
            # Its worker process is killed, and the kernel ends a tool whose parent died.
            self._ray.cancel(reference, force=True)
            del self._running[reference]

    def workers(self) -> Sequence[WorkerState]:
        """See Executor."""
        return ()

    def cancel_all(self) -> None:
        """See Executor."""
        self.cancel({request.key for request in self._running.values()})

    def close(self) -> None:
        """See Executor."""
        if self._ray is not None:
            self.cancel_all()
            self._disconnect()

    def _result(self, reference: Any) -> Result:
        request = self._running.pop(reference)
        try:
            result: Result = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            return failed(
                request, Failure(Fault.FARM, f"a worker cannot run this program: {_line(error)}", stderr=str(error))
            )
        except self._ray.exceptions.RayError as error:
            return failed(request, Failure(Fault.CRASH, f"its worker died: {_line(error)}", stderr=str(error)))
        return result

    def _connect(self) -> None:
        if self._ray is not None:
            return
        address = self._settings.ray_address
        where = f"the Ray cluster at {address}" if address else "Ray on this machine"
        set_environment_defaults(_ENVIRONMENT if address else _ENVIRONMENT | _local_environment())
        try:
            import ray
        except ImportError as error:
            raise UnreachableError(
                f"Ray cannot be imported ({error}): install it, or set FARM_EXECUTOR=inline"
            ) from None
        self._ray = ray
        try:
            if not ray.is_initialized():
                self._start(address)
            cpus = int(self._ray.cluster_resources().get("CPU", 0))
            if not cpus:
                raise NoWorkerError(f"{where} has no worker with a CPU: start one, or set FARM_EXECUTOR=inline")
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self._disconnect()
            raise UnreachableError(
                f"{where} cannot be reached ({_line(error)}): see farm doctor, or set FARM_EXECUTOR=inline"
            ) from error
        except BaseException:
            self._disconnect()
            raise
        self._capacity = SUBMITTED_PER_CPU * cpus
        self._task = ray.remote(num_cpus=1, max_retries=0)(build_request)

    def _start(self, address: str | None) -> None:
        self._started = True
        options: dict[str, Any] = {"address": address}
        if address is None:
            self._folder = tempfile.mkdtemp(prefix="farm-ray-")
            options = {
                "address": "local",
                "num_cpus": self._settings.jobs,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": self._folder,
            }
        else:
            _knock(address)
        self._ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)

    def _disconnect(self) -> None:
        if self._started:
            self._ray.shutdown()
        self._ray, self._started = None, False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _local_environment() -> dict[str, str]:
    return {
        # Ray listens on every interface; only who has this process's token may give it work.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # At Ray's own, 15, whatever else this machine does would stop the builds.
        "RAY_worker_niceness": "0",
    }


def _knock(address: str) -> None:
    """Raises OSError where nobody listens: Ray itself would try for minutes, and say so on stderr."""
    if match := re.fullmatch(r"(?:ray://)?\[?([^/\]]+)\]?:(\d+)", address):
        socket.create_connection((match[1], int(match[2])), timeout=CONNECT_SECONDS).close()


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
