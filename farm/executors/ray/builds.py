"""The executor that runs requests as Ray tasks, on this machine or on a cluster."""

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
from farm.executors.ray.autoscaling import MAX_PLACEHOLDERS, NodeWait, ResourceDemand, Resources
from farm.executors.ray.connection import CHECK_SECONDS, RayConnection, first_line
from farm.executors.ray.nodes import Node, NodeFacts, Nodes, node_facts
from farm.store import open_store
from farm.store.contract import Store
from farm.store.memory import MemoryStore
from farm.worker.build import Worker
from farm.worker.messages import Failure, Fault, Request, Result, failed
from farm.worker.process import keep_freed_memory

LOOK_SECONDS = 2.0
"""Interval of listing the nodes."""


@lru_cache(maxsize=1)
def _worker(settings: Settings) -> Worker:
    """One worker for the life of Ray's worker process, so that its parsed templates are kept."""
    keep_freed_memory()
    return Worker.of(settings, open_store(settings), find_toolchain(settings.nvcc, settings.ptxas))


def build_request(settings: Settings, request: Request) -> Result:
    """Body of a Ray task: builds a request with the store and the toolchain of its node."""
    try:
        worker = _worker(settings)
    except (CodegenError, FarmError) as error:
        return failed(request, Failure(Fault.FARM, f"worker cannot start: {error}"))
    return worker.build(request)


@dataclass(frozen=True)
class SubmittedRequest:
    """A request that was given to Ray, and its node."""

    request: Request
    node: Node


@dataclass(frozen=True)
class UnplacedRequest:
    """A request too large for the present nodes, while a growing cluster may still start a larger one."""

    request: Request
    until: float
    """End of the wait, by the monotonic clock."""


class ClusterExecutor(Executor):
    """Runs each request as a Ray task pinned to a node whose tools and program version match the coordinator's.

    Starts Ray on this machine, or joins the cluster that the settings name. Requests without a free node become demand
    that an autoscaler sees.
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
        """Settings of the workers, without the database URL and its password."""
        self._toolchain = toolchain
        self._connection = RayConnection(settings)
        self._demand = ResourceDemand(self._connection)
        self._node_wait = NodeWait(self._connection, settings, notice, patience_seconds)
        self._ray: Any = None
        self._build: Any = None
        self._check: Any = None
        self._nodes = Nodes()
        self._looked_at = 0.0
        self._expected: Sequence[Request] = ()
        """Announced requests beyond the capacity."""
        self._submitted: dict[Any, SubmittedRequest] = {}
        """By Ray's reference to the result."""
        self._checks: dict[Any, Node] = {}
        """Nodes whose tools are being checked, by Ray's reference to the answer."""
        self._unplaced: dict[str, UnplacedRequest] = {}
        """Requests by key."""
        self._refused: list[Result] = []

    @property
    def local(self) -> bool:
        """See Executor."""
        return False  # Ray ends the workers, or another machine is exhausted

    @property
    def capacity(self) -> int:
        """See Executor."""
        self._connect()
        self._look()
        if self._nodes.usable or self._checks:
            self._node_wait.reset()
        else:
            self._node_wait.wait(
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
        patience = self._node_wait.shortage_seconds
        if patience:
            self._unplaced[request.key] = UnplacedRequest(request, time.monotonic() + patience)
        else:
            self._refuse(request)

    def _place(self, request: Request) -> bool:
        """Submit a request to the least loaded node that fits; False if there is none."""
        node = self._nodes.choose(request)
        if node is None:
            return False
        self._nodes.give(node, request)
        here = self._connection.on(node)
        reference = self._build.options(memory=request.memory_bytes, scheduling_strategy=here).remote(
            self._worker_settings, request
        )
        self._submitted[reference] = SubmittedRequest(request, node)
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
        self._retry_unplaced()
        results, self._refused = self._refused, []
        references = list(self._submitted)
        if not references:
            if self._unplaced and not results:
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
        for key in keys & self._unplaced.keys():
            del self._unplaced[key]
        for reference in [each for each, task in self._submitted.items() if task.request.key in keys]:
            # Ray kills the worker process, and the kernel then kills its tool.
            self._ray.cancel(reference, force=True)
            task = self._submitted.pop(reference)
            self._nodes.drop(task.node, [task.request.key])

    def running(self) -> Collection[str]:
        """See Executor."""
        return self._nodes.running

    def workers(self) -> Sequence[WorkerState]:
        """See Executor."""
        return self._nodes.states()

    def cancel_all(self) -> None:
        """See Executor."""
        self.cancel({task.request.key for task in self._submitted.values()} | self._unplaced.keys())
        self._refused.clear()
        self._expected = ()
        self._demand.forget()

    def close(self) -> None:
        """See Executor."""
        if self._ray is not None:
            self.cancel_all()
        self._disconnect()

    def _result(self, reference: Any) -> Result:
        task = self._submitted.pop(reference)
        request = task.request
        try:
            result: Result = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            told = f"worker cannot run this program: {first_line(error)}"
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
        """Wait until one node is usable or all checks have ended."""
        end = time.monotonic() + CHECK_SECONDS
        while not self._nodes.usable and self._checks and time.monotonic() < end:
            self._ray.wait(list(self._checks), num_returns=1, timeout=1.0)
            self._take_checks()

    def _look(self) -> None:
        """Every LOOK_SECONDS: list the nodes, check new ones, and update the demand."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        for node in self._nodes.see(node for node in self._connection.nodes() if node.cpus):
            if self._connection.is_own:
                node.reason = ""  # this machine runs the same program
            else:
                check = self._check.options(scheduling_strategy=self._connection.on(node))
                self._checks[check.remote(self._settings.nvcc, self._settings.ptxas)] = node
        self._take_checks()
        if not self._connection.is_own:
            waiting = [*(unplaced.request for unplaced in self._unplaced.values()), *self._expected][:MAX_PLACEHOLDERS]
            self._demand.update(Counter(Resources(cpus=1, memory_bytes=request.memory_bytes) for request in waiting))

    def _retry_unplaced(self) -> None:
        for unplaced in list(self._unplaced.values()):
            placed = self._place(unplaced.request)
            if not placed and time.monotonic() > unplaced.until:
                self._refuse(unplaced.request)
            if placed or time.monotonic() > unplaced.until:
                del self._unplaced[unplaced.request.key]

    def _take_checks(self) -> None:
        if not self._checks:
            return
        ready, _ = self._ray.wait(list(self._checks), num_returns=len(self._checks), timeout=0)
        wanted = NodeFacts.here(self._toolchain)
        for reference in ready:
            self._checks.pop(reference).reason = self._connection.difference(reference, wanted)

    def _disconnect(self) -> None:
        self._connection.close()
        self._ray = None
        self._looked_at = 0.0
        self._checks.clear()
