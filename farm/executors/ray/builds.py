"""Runs requests as Ray tasks, on this machine or on a cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from codegen.errors import CodegenError
from codegen.toolchain.tools import Toolchain, find_toolchain
from farm.config.settings import Settings, redacted
from farm.errors import FarmError, UsageError
from farm.executors.contract import Executor, Notice, WorkerState, no_notice
from farm.executors.ray.autoscaling import MOST_CLAIMS, Demand, Patience, Shape
from farm.executors.ray.connection import CHECK_SECONDS, RayConnection, first_line
from farm.executors.ray.nodes import Node, NodeFacts, Nodes, node_facts
from farm.store import open_store
from farm.store.contract import Store
from farm.store.memory import MemoryStore
from farm.worker.build import Worker
from farm.worker.messages import Failure, Fault, Request, Result, failed

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


@dataclass(frozen=True)
class Held:
    """A request for which no machine is large enough, while a cluster that grows may still start one."""

    request: Request
    until: float
    """By the monotonic clock."""


class ClusterExecutor(Executor):
    """One Ray task per request, on the machine that this program chose: only those with the plan's tools get any.

    Starts Ray on this machine, or joins the cluster that the settings name. For work that has no room there it raises
    demand, which an autoscaler sees.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        toolchain: Toolchain,
        notice: Notice = no_notice,
        patience_seconds: float | None = None,
    ) -> None:
        if isinstance(store, MemoryStore):
            raise UsageError(
                "Ray's workers cannot read a store in memory: use a store in a folder, or the inline executor"
            )
        self._settings = settings
        self._worker_settings = replace(settings, database_url="")
        """Workers use no database, so its password stays here."""
        self._toolchain = toolchain
        self._connection = RayConnection(settings)
        self._demand = Demand(self._connection)
        self._patience = Patience(self._connection, settings, notice, patience_seconds)
        self._ray: Any = None
        self._build: Any = None
        self._check: Any = None
        self._nodes = Nodes()
        self._looked_at = 0.0
        self._expected: Sequence[Request] = ()
        """That have no room yet."""
        self._tasks: dict[Any, Task] = {}
        """By Ray's reference to the result to come."""
        self._checks: dict[Any, Node] = {}
        """The same for machines that are asked which tools they have."""
        self._held: dict[str, Held] = {}
        """By key."""
        self._refused: list[Result] = []

    @property
    def capacity(self) -> int:
        """See Executor."""
        self._connect()
        self._look()
        if self._nodes.usable or self._checks:
            self._patience.reset()
        else:
            self._patience.wait(
                "worker",
                f"{self._connection.where} has no machine that can do this work",
                self._nodes.reasons,
                "FARM_EXECUTOR=processes builds on this machine",
            )
        return self._nodes.capacity

    def foresee(self, requests: Sequence[Request]) -> None:
        """See Executor; without effect."""

    def submit(self, request: Request) -> None:
        """See Executor."""
        self._connect()
        if self._place(request):
            return
        patience = self._patience.shortage_seconds
        if patience:
            self._held[request.key] = Held(request, time.monotonic() + patience)
        else:
            self._refuse(request)

    def _place(self, request: Request) -> bool:
        """Gives it to a machine, if there is one for it."""
        node = self._nodes.choose(request)
        if node is None:
            return False
        self._nodes.give(node, request)
        here = self._connection.on(node)
        reference = self._build.options(memory=request.memory_bytes, scheduling_strategy=here).remote(
            self._worker_settings, request
        )
        self._tasks[reference] = Task(request, node)
        return True

    def _refuse(self, request: Request) -> None:
        self._refused.append(failed(request, Failure(Fault.FARM, self._nodes.refusal(request))))

    def expect(self, requests: Sequence[Request]) -> None:
        """See Executor."""
        if bool(requests) != bool(self._expected):
            self._looked_at = 0.0
        self._expected = requests
        if self._ray is not None:
            self._look()

    def wait(self, timeout_seconds: float) -> list[Result]:
        """See Executor."""
        self._retry_held()
        results, self._refused = self._refused, []
        references = list(self._tasks)
        if not references:
            if self._held and not results:
                time.sleep(min(timeout_seconds, LOOK_SECONDS))
                self._look()
            return results
        self._ray.wait(references, num_returns=1, timeout=0 if results else timeout_seconds)
        ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        self._look()
        return results + [self._result(reference) for reference in ready]

    def cancel(self, keys: Collection[str]) -> None:
        """See Executor."""
        self._refused = [result for result in self._refused if result.key not in keys]
        for key in keys & self._held.keys():
            del self._held[key]
        for reference in [each for each, task in self._tasks.items() if task.request.key in keys]:
            # Its worker process is killed, and the kernel ends a tool whose parent died.
            self._ray.cancel(reference, force=True)
            task = self._tasks.pop(reference)
            self._nodes.drop(task.node, [task.request.key])

    def running(self) -> Collection[str]:
        """See Executor."""
        return self._nodes.running

    def workers(self) -> Sequence[WorkerState]:
        """See Executor."""
        return self._nodes.states()

    def cancel_all(self) -> None:
        """See Executor."""
        self.cancel({task.request.key for task in self._tasks.values()} | self._held.keys())
        self._refused.clear()
        self._expected = ()
        self._demand.forget()

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
            self._await_first_check()
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self._disconnect()
            raise self._connection.unreachable(error) from error
        except BaseException:
            self._disconnect()
            raise

    def _await_first_check(self) -> None:
        """Until one machine may get work, or none may; others may still be asked."""
        end = time.monotonic() + CHECK_SECONDS
        while not self._nodes.usable and self._checks and time.monotonic() < end:
            self._ray.wait(list(self._checks), num_returns=1, timeout=1.0)
            self._take_checks()

    def _look(self) -> None:
        """Every now and then: notices machines that came or went, has those that are new checked, and asks for more."""
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
        if not self._connection.is_own:
            homeless = [*(held.request for held in self._held.values()), *self._expected][:MOST_CLAIMS]
            self._demand.want(Counter(Shape(cpus=1, memory_bytes=request.memory_bytes) for request in homeless))

    def _retry_held(self) -> None:
        for held in list(self._held.values()):
            placed = self._place(held.request)
            if not placed and time.monotonic() > held.until:
                self._refuse(held.request)
            if placed or time.monotonic() > held.until:
                del self._held[held.request.key]

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
