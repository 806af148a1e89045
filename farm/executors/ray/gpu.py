"""A GPU host on a Ray cluster: one task with one GPU, which streams its events back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from codegen.errors import CodegenError
from codegen.toolchain.tools import find_toolchain
from farm.config.settings import Settings
from farm.errors import FarmError, NoWorkerError
from farm.executors.contract import Notice
from farm.executors.gpu_host import Event, GpuHost, Work
from farm.executors.ray.autoscaling import NodeWait, ResourceDemand, Resources
from farm.executors.ray.connection import CHECK_SECONDS, RayConnection, first_line
from farm.executors.ray.nodes import Node, NodeFacts, node_facts

ONE_GPU = Counter([Resources(gpus=1)])
LOOK_SECONDS = 0.5
"""Interval of looking for a free GPU."""
PATIENCE_SECONDS = 5.0
"""Wait without a notice: Ray takes seconds to start a process, and to notice that one has ended."""


@dataclass(frozen=True)
class Started:
    """First event of a task: it has its GPU."""


@dataclass(frozen=True)
class Failed:
    """Last event of failed work, with the exception's type and message, because not every exception can be pickled."""

    kind: type[Exception]
    message: str


def gpu_task(settings: Settings, work: Work[Any]) -> Iterator[Any]:
    """Body of the Ray task."""
    yield Started()
    try:
        yield from work(settings)
    except (CodegenError, FarmError) as error:
        yield Failed(type(error), str(error))


class ClusterGpuHost(GpuHost):
    """Joins the cluster, and runs work on a node with a GPU whose tools and program version match the caller's."""

    def __init__(self, settings: Settings, notice: Notice) -> None:
        self._settings = settings
        self._notice = notice
        self._connection = RayConnection(settings)
        self._demand = ResourceDemand(self._connection)
        self._node_wait = NodeWait(self._connection, settings, notice, None)
        self._ray: Any = None
        self._nodes: list[Node] = []
        """Known nodes with a GPU, live or dead."""
        self._stream: Any = None
        """Ray's stream of the running task's events."""

    @property
    def is_remote(self) -> bool:
        """See GpuHost."""
        return True

    def __enter__(self) -> Self:
        """Connect and wait for a usable node. Raises UnreachableError, and NoWorkerError at the end of the wait."""
        self._ray = self._connection.open()
        try:
            self._await_usable()
        except self._ray.exceptions.RayError as error:
            self.__exit__()
            raise self._connection.unreachable(error) from error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        if self._stream is not None:
            # Ray kills the process, which frees the GPU, and the kernel then kills its tool.
            self._ray.cancel(self._stream, force=True)
            self._stream = None
        self._demand.forget()
        self._connection.close()

    def run(self, work: Work[Event]) -> Iterator[Event]:
        """See GpuHost."""
        node = self._free_node()
        # num_cpus=0: it must not wait for builds on that node. max_calls=1: a reused process would hold GPU memory.
        task = self._ray.remote(num_cpus=0, num_gpus=1, max_calls=1, max_retries=0)(gpu_task)
        here = self._connection.on(node)
        self._stream = task.options(scheduling_strategy=here).remote(_settings_on(node, self._settings), work)
        if not self._ray.wait([self._stream], timeout=PATIENCE_SECONDS)[0]:
            self._notice(f"waiting for {node.name} to begin")
        try:
            for reference in self._stream:
                event = self._ray.get(reference)
                if isinstance(event, Failed):
                    # Without the constructor, which may need other arguments than a message.
                    raise event.kind.__new__(event.kind, f"on {node.name}: {event.message}")
                if not isinstance(event, Started):
                    yield event
        except self._ray.exceptions.RayTaskError:
            raise  # a bug in the work, with the remote traceback
        except self._ray.exceptions.RayError as error:
            raise NoWorkerError(
                f"the process with the GPU on {node.name} was lost ({first_line(error)}): run the same command again"
            ) from None
        self._stream = None

    def _await_usable(self) -> None:
        """Wait for a usable node. Raises NoWorkerError at the end of the wait."""
        while True:
            self._look()
            if any(node.usable for node in self._nodes):
                self._node_wait.reset()
                self._demand.forget()
                return
            reasons = "; ".join(f"{node.name}: {node.reason}" for node in self._nodes if node.alive)
            kind = "whose GPU can do this" if reasons else "with a GPU"
            missing = f"{self._connection.where} has no machine {kind}"
            self._node_wait.wait("machine with a GPU", missing, reasons, "--local takes the GPU of this machine")
            self._demand.update(ONE_GPU)
            time.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        """List the nodes and check the tools of new ones."""
        there = {node.id: node for node in self._connection.nodes() if node.gpus}
        for node in self._nodes:
            node.alive = there.pop(node.id, None) is not None
        new = list(there.values())
        if not new:
            return
        nvcc, ptxas = self._settings.nvcc, self._settings.ptxas
        tools = find_toolchain(nvcc, ptxas)
        wanted = NodeFacts.here(tools)
        ask = self._ray.remote(num_cpus=0, max_retries=0)(node_facts)
        asked = {ask.options(scheduling_strategy=self._connection.on(node)).remote(nvcc, ptxas): node for node in new}
        answered, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=CHECK_SECONDS)
        for reference in answered:
            asked[reference].reason = self._connection.difference(reference, wanted)
        self._nodes += new

    def _free_node(self) -> Node:
        """Wait for a usable node with a free GPU, without a time limit. Raises NoWorkerError if no node is usable."""
        began, told = time.monotonic(), False
        while True:
            self._await_usable()
            usable = [node for node in self._nodes if node.usable]
            free = self._connection.free_gpus()
            for node in usable:
                if free.get(node.id, 0) >= 1:
                    self._demand.forget()
                    return node
            self._demand.update(ONE_GPU)
            if not told and time.monotonic() - began > PATIENCE_SECONDS:
                names = ", ".join(node.name for node in usable)
                self._notice(f"waiting for a GPU: those of the cluster ({names}) are in use")
                told = True
            time.sleep(LOOK_SECONDS)


def _settings_on(node: Node, settings: Settings) -> Settings:
    """Settings for work on a node: no database, and one compiler per CPU of the node unless the user set the number."""
    jobs = max(1, node.cpus) if settings.origins.get("jobs") == "default" else settings.jobs
    return replace(settings, database_url="", jobs=jobs)
