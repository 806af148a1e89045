"""Runs requests as Ray tasks, on this machine or on a cluster. The only importer of Ray."""

from __future__ import annotations

import logging
import secrets
import signal
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from codegen.errors import CodegenError
from codegen.scratch import ScratchFolder, remove_abandoned
from codegen.toolchain import Toolchain, find_toolchain
from farm.build import Worker
from farm.errors import FarmError, NoWorkerError, UnreachableError, UsageError
from farm.executors.address import host_and_port, knock
from farm.executors.contract import Executor, WorkerState
from farm.executors.nodes import Node, NodeFacts, Nodes
from farm.executors.token import refusal, require_token
from farm.requests import Failure, Fault, Request, Result, failed
from farm.settings import Settings, ray_authentication, redacted, set_environment_defaults
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
_CLUSTER_ENVIRONMENT = {
    # Without it Ray joins a cluster with a token only where it finds one by itself.
    "RAY_AUTH_MODE": "token",
    # Seconds that a cluster which listens may take to let us in: at Ray's own, 20, a wrong token is told late.
    "RAY_NUM_REDIS_GET_RETRIES": "5",
}
CHECK_SECONDS = 60.0
"""How long a machine may take to say which tools it has."""
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


def node_facts(nvcc: Path | None, ptxas: Path | None) -> NodeFacts | str:
    """What a machine is asked before it gets work; in words why it can do none."""
    try:
        toolchain = find_toolchain(nvcc, ptxas)
        return NodeFacts.here(toolchain.nvcc_version, toolchain.ptxas_version)
    except CodegenError as error:
        return str(error)


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
        self._ray: Any = None
        self._build: Any = None
        self._check: Any = None
        self._nodes = Nodes()
        self._looked_at = 0.0
        self._usable_at = 0.0
        """When there was a machine that could do the work, or was asked whether it can."""
        self._started = False
        """By this executor; a Ray that the program around it started is used, and left as it is."""
        self._folder: ScratchFolder | None = None
        """Of a local Ray's sockets and logs."""
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
        here = self._on(node)
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
            told = f"a worker cannot run this program: {_line(error)}"
            result = failed(request, Failure(Fault.FARM, told, stderr=redacted(str(error))))
        except self._ray.exceptions.RayError as error:
            told = f"its worker on {task.node.name} died: {_line(error)}"
            result = failed(request, Failure(Fault.CRASH, told, stderr=redacted(str(error))))
            self._looked_at = 0.0
        crashed = result.failure is not None and result.failure.fault is Fault.CRASH
        self._nodes.take_back(task.node, request.key, failed=result.failure is not None, crashed=crashed)
        return result

    def _connect(self) -> None:
        if self._ray is not None:
            return
        address = self._settings.ray_address
        where = f"the Ray cluster at {address}" if address else "Ray on this machine"
        set_environment_defaults(_ENVIRONMENT | (_CLUSTER_ENVIRONMENT if address else _local_environment()))
        try:
            import ray
        except ImportError as error:
            raise UnreachableError(
                f"Ray cannot be imported ({error}): install it, or set FARM_EXECUTOR=inline"
            ) from None
        self._ray = ray
        try:
            if not ray.is_initialized():
                self._start(address, where)
            self._build = ray.remote(num_cpus=1, max_retries=0)(build_request)
            self._check = ray.remote(num_cpus=0, max_retries=0)(node_facts)
            self._nodes = Nodes()
            self._look()
            self._await_first_node(where)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self._disconnect()
            raise UnreachableError(
                f"{where} cannot be reached ({_line(error)}): see farm doctor, or set FARM_EXECUTOR=inline"
            ) from error
        except BaseException:
            self._disconnect()
            raise

    def _await_first_node(self, where: str) -> None:
        """Until one machine may get work; others may still be asked. Raises NoWorkerError."""
        end = time.monotonic() + CHECK_SECONDS
        while not self._nodes.usable and self._checks and time.monotonic() < end:
            self._ray.wait(list(self._checks), num_returns=1, timeout=1.0)
            self._take_checks()
        if not self._nodes.usable:
            raise NoWorkerError(
                f"{where} has no machine that can do this work ({self._nodes.reasons}); "
                "FARM_EXECUTOR=inline builds in this process"
            )
        self._usable_at = time.monotonic()

    def _look(self) -> None:
        """Notices machines that came or went, every now and then, and has those that are new checked."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        found = (_node(each) for each in self._ray.nodes() if each["Alive"])
        for node in self._nodes.see(node for node in found if node.cpus):
            if self._folder is not None:
                node.reason = ""  # this machine, and this program's own sources
            else:
                check = self._check.options(scheduling_strategy=self._on(node))
                self._checks[check.remote(self._settings.nvcc, self._settings.ptxas)] = node
        self._take_checks()

    def _take_checks(self) -> None:
        if not self._checks:
            return
        ready, _ = self._ray.wait(list(self._checks), num_returns=len(self._checks), timeout=0)
        wanted = NodeFacts.here(self._toolchain.nvcc_version, self._toolchain.ptxas_version)
        for reference in ready:
            node = self._checks.pop(reference)
            try:
                facts = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                facts = f"it cannot run this program: {_line(error)}"
            node.reason = facts.difference(wanted) if isinstance(facts, NodeFacts) else str(facts)

    def _on(self, node: Node) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.id, soft=False)

    def _start(self, address: str | None, where: str) -> None:
        self._started = True
        authentication = ray_authentication()
        options: dict[str, Any] = {"address": address}
        if address is None:
            self._folder = ScratchFolder("ray")
            options = {
                "address": "local",
                "num_cpus": self._settings.jobs,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": str(self._folder.path),
            }
        else:
            knock(address)
            require_token(where, authentication)
            _require_node(address, where)
        obeyed = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, self._ray.exceptions.AuthenticationError) as error:
            if address is None:
                raise
            raise refusal(where, authentication) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, obeyed)  # Ray puts its own in this one's place

    def _disconnect(self) -> None:
        if self._started:
            self._ray.shutdown()
        self._ray, self._started, self._looked_at = None, False, 0.0
        self._checks.clear()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
        remove_abandoned()


def _node(found: Mapping[str, Any]) -> Node:
    """A machine as Ray describes it."""
    resources = found["Resources"]
    return Node(
        id=found["NodeID"],
        name=found["NodeManagerHostname"],
        cpus=int(resources.get("CPU", 0)),
        gpus=int(resources.get("GPU", 0)),
        memory_bytes=int(resources.get("memory", 0)),
    )


def _local_environment() -> dict[str, str]:
    return {
        # Ray listens on every interface; only who has this process's token may give it work.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # At Ray's own, 15, whatever else this machine does would stop the builds.
        "RAY_worker_niceness": "0",
    }


def _require_node(address: str, where: str) -> None:
    """Raises NoWorkerError where this machine is no node of the cluster: Ray itself would abort the whole process."""
    from ray._private import services

    place = None if address.startswith("ray://") else host_and_port(address)
    if place is None:
        return
    host, port = socket.gethostbyname(place[0]), place[1]
    local: Any = services
    joined = {found for each in local.find_gcs_addresses() if (found := host_and_port(each))}
    # Ray takes the loopback for this machine's own address.
    if not any(port == its_port and host in (its_host, "127.0.0.1") for its_host, its_port in joined):
        raise NoWorkerError(
            f"{where} can be used from one of its nodes, and this machine is none: "
            f"run ray start --address={address} --num-cpus=0 here first"
        )


def _line(error: BaseException) -> str:
    lines = redacted(str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
