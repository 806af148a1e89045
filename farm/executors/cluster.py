"""Runs requests as Ray tasks, on this machine or on a cluster."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from codegen.errors import CodegenError
from codegen.toolchain import Toolchain, find_toolchain
from farm.errors import FarmError, NoWorkerError, UsageError
from farm.executors.connection import CHECK_SECONDS, RayConnection, first_line
from farm.executors.contract import Executor, WorkerState
from farm.executors.nodes import Node, NodeFacts, Nodes, node_facts
from farm.settings import Settings, redacted
from farm.store import open_store
from farm.store.contract import Store
from farm.store.memory import MemoryStore
from farm.worker.build import Worker
from farm.worker.requests import Failure, Fault, Request, Result, failed

GONE_SECONDS = 30.0
"""How long it is waited for a machine when the last one is gone."""
LOOK_SECONDS = 2.0
"""How often it is asked which machines there are."""


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


@dataclass(frozen=True)
class Task:
    """A request on its way."""

    request: Request
    node: Node


class ClusterExecutor(Executor):
    """One Ray task per request, on the machine that this program chose: only those with the plan's tools get any.

    Starts Ray on this machine, or joins the cluster that the settings name.
    """

    def __init__(self, settings: Settings, store: Store, toolchain: Toolchain) -> None:
        if isinstance(store, MemoryStore):
            raise UsageError(
                "a store in memory is not seen by Ray's workers: use a store in a folder, or the inline executor"
            )
        self._settings = settings
        self._worker_settings = replace(settings, database_url="")
        """Workers use no database, so its password stays here."""
        self._toolchain = toolchain
        self._connection = RayConnection(settings)
        self._ray: Any = None
        self._build: Any = None
        self._check: Any = None
        self._nodes = Nodes()
        self._looked_at = 0.0
        self._usable_at = 0.0
        """When there was a machine that could do the work, or was asked whether it can."""
        self._tasks: dict[Any, Task] = {}
        """By Ray's reference to the result to come."""
        self._checks: dict[Any, Node] = {}
        """The same for machines that are asked which tools they have."""
        self._refused: list[Result] = []

    @property
    def capacity(self) -> int:
        """See Executor."""
        self._connect()
        self._look()
        capacity = self._nodes.capacity
        if capacity or self._checks:
            self._usable_at = time.monotonic()
        elif time.monotonic() - self._usable_at > GONE_SECONDS:
            raise NoWorkerError(f"for {GONE_SECONDS:g} s no machine could do this work: {self._nodes.reasons}")
        return capacity

    def submit(self, request: Request) -> None:
        """See Executor."""
        self._connect()
        node = self._nodes.choose(request)
        if node is None:
            self._refused.append(failed(request, Failure(Fault.FARM, self._nodes.refusal(request))))
            return
        self._nodes.give(node, request)
        here = self._connection.on(node)
        reference = self._build.options(memory=request.memory_bytes, scheduling_strategy=here).remote(
            self._worker_settings, request
        )
        self._tasks[reference] = Task(request, node)

    def wait(self, timeout_seconds: float) -> list[Result]:
        """See Executor."""
        results, self._refused = self._refused, []
        references = list(self._tasks)
        if not references:
            return results
        self._ray.wait(references, num_returns=1, timeout=0 if results else timeout_seconds)
        ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        self._look()
        return results + [self._result(reference) for reference in ready]

    def cancel(self, keys: Collection[str]) -> None:
        """See Executor."""
        self._refused = [result for result in self._refused if result.key not in keys]
        for reference in [each for each, task in self._tasks.items() if task.request.key in keys]:
            # Its worker process is killed, and the kernel ends a tool whose parent died.
            self._ray.cancel(reference, force=True)
            task = self._tasks.pop(reference)
            self._nodes.drop(task.node, [task.request.key])

    def workers(self) -> Sequence[WorkerState]:
        """See Executor."""
        return self._nodes.states()

    def cancel_all(self) -> None:
        """See Executor."""
        self.cancel({task.request.key for task in self._tasks.values()})
        self._refused.clear()

    def close(self) -> None:
        """See Executor."""
        if self._ray is not None:
            self.cancel_all()
        self._disconnect()

    def _result(self, reference: Any) -> Result:
        task = self._tasks.pop(reference)
        request = task.request
        try:
            result: Result = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            told = f"a worker cannot run this program: {first_line(error)}"
            result = failed(request, Failure(Fault.FARM, told, stderr=redacted(str(error))))
        except self._ray.exceptions.RayError as error:
            told = f"its worker on {task.node.name} died: {first_line(error)}"
            result = failed(request, Failure(Fault.CRASH, told, stderr=redacted(str(error))))
            self._looked_at = 0.0
        crashed = result.failure is not None and result.failure.fault is Fault.CRASH
        self._nodes.take_back(task.node, request.key, failed=result.failure is not None, crashed=crashed)
        return result

    def _connect(self) -> None:
        if self._ray is not None:
            return
        self._ray = ray = self._connection.open()
        try:
            self._build = ray.remote(num_cpus=1, max_retries=0)(build_request)
            self._check = ray.remote(num_cpus=0, max_retries=0)(node_facts)
            self._nodes = Nodes()
            self._look()
            self._await_first_node()
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self._disconnect()
            raise self._connection.unreachable(error) from error
        except BaseException:
            self._disconnect()
            raise

    def _await_first_node(self) -> None:
        """Until one machine may get work; others may still be asked. Raises NoWorkerError."""
        end = time.monotonic() + CHECK_SECONDS
        while not self._nodes.usable and self._checks and time.monotonic() < end:
            self._ray.wait(list(self._checks), num_returns=1, timeout=1.0)
            self._take_checks()
        if not self._nodes.usable:
            raise NoWorkerError(
                f"{self._connection.where} has no machine that can do this work ({self._nodes.reasons}); "
                "FARM_EXECUTOR=inline builds in this process"
            )
        self._usable_at = time.monotonic()

    def _look(self) -> None:
        """Notices machines that came or went, every now and then, and has those that are new checked."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        for node in self._nodes.see(node for node in self._connection.nodes() if node.cpus):
            if self._connection.is_own:
                node.reason = ""  # this machine, and this program's own sources
            else:
                check = self._check.options(scheduling_strategy=self._connection.on(node))
                self._checks[check.remote(self._settings.nvcc, self._settings.ptxas)] = node
        self._take_checks()

    def _take_checks(self) -> None:
        if not self._checks:
            return
        ready, _ = self._ray.wait(list(self._checks), num_returns=len(self._checks), timeout=0)
        wanted = NodeFacts.here(self._toolchain.nvcc_version, self._toolchain.ptxas_version)
        for reference in ready:
            self._checks.pop(reference).reason = self._connection.difference(reference, wanted)

    def _disconnect(self) -> None:
        self._connection.close()
        self._ray = None
        self._looked_at = 0.0
        self._checks.clear()
