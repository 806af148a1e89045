"""Runs work on a GPU of a Ray cluster: one task with a GPU to itself, whose events come back as it tells them."""

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
from farm.executors.ray.autoscaling import Demand, Patience, Shape
from farm.executors.ray.connection import CHECK_SECONDS, RayConnection, first_line
from farm.executors.ray.nodes import Node, NodeFacts, node_facts

ONE_GPU = Counter([Shape(gpus=1)])
LOOK_SECONDS = 0.5
"""How often it is asked whether a GPU is free."""
PATIENCE_SECONDS = 5.0
"""After which it is said what is waited for: Ray takes some seconds to start a process, and to see that one ended."""


@dataclass(frozen=True)
class Begun:
    """The first event: the task has its GPU."""


@dataclass(frozen=True)
class Raised:
    """The last event of work that failed. Not the error itself: not every error can be pickled."""

    kind: type[Exception]
    message: str


def gpu_task(settings: Settings, work: Work[Any]) -> Iterator[Any]:
    """What the Ray task does."""
    yield Begun()
    try:
        yield from work(settings)
    except (CodegenError, FarmError) as error:
        yield Raised(type(error), str(error))


class ClusterGpuHost(GpuHost):
    """Joins the cluster, and chooses a machine with a GPU whose tools and version of this program are the caller's."""

    def __init__(self, settings: Settings, notice: Notice) -> None:
        self._settings = settings
        self._notice = notice
        self._connection = RayConnection(settings)
        self._demand = Demand(self._connection)
        self._patience = Patience(self._connection, settings, notice, None)
        self._ray: Any = None
        self._nodes: list[Node] = []
        """With a GPU, that there were."""
        self._stream: Any = None
        """The results of the running task; None while none runs."""

    @property
    def is_remote(self) -> bool:
        """See GpuHost."""
        return True

    def __enter__(self) -> Self:
        """Raises UnreachableError, and NoWorkerError if no machine of the cluster can do the work, or soon will."""
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
            # Its process is killed, which frees the GPU, and the kernel ends a tool whose parent died.
            self._ray.cancel(self._stream, force=True)
            self._stream = None
        self._demand.forget()
        self._connection.close()

    def run(self, work: Work[Event]) -> Iterator[Event]:
        """See GpuHost."""
        node = self._free_node()
        # No CPU: it waits for a GPU only, not for the builds that were given to the machine before. One call: a process
        # that stayed would keep memory of the GPU.
        task = self._ray.remote(num_cpus=0, num_gpus=1, max_calls=1, max_retries=0)(gpu_task)
        here = self._connection.on(node)
        self._stream = task.options(scheduling_strategy=here).remote(_settings_on(node, self._settings), work)
        if not self._ray.wait([self._stream], timeout=PATIENCE_SECONDS)[0]:
            self._notice(f"waiting for {node.name} to begin")
        try:
            for reference in self._stream:
                event = self._ray.get(reference)
                if isinstance(event, Raised):
                    # Not by its constructor, which may want more than a message.
                    raise event.kind.__new__(event.kind, f"on {node.name}: {event.message}")
                if not isinstance(event, Begun):
                    yield event
        except self._ray.exceptions.RayTaskError:
            raise  # a defect: it has the traceback from there
        except self._ray.exceptions.RayError as error:
            raise NoWorkerError(
                f"the process with the GPU on {node.name} was lost ({first_line(error)}): run the same command again"
            ) from None
        self._stream = None

    def _await_usable(self) -> None:
        """Until there is a machine whose GPU can do this. Raises NoWorkerError where there will be none."""
        while True:
            self._look()
            if any(node.usable for node in self._nodes):
                self._patience.reset()
                self._demand.forget()
                return
            reasons = "; ".join(f"{node.name}: {node.reason}" for node in self._nodes if node.alive)
            kind = "whose GPU can do this" if reasons else "with a GPU"
            missing = f"{self._connection.where} has no machine {kind}"
            self._patience.wait("machine with a GPU", missing, reasons, "--local takes the GPU of this machine")
            self._demand.want(ONE_GPU)
            time.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        """Notices machines that came or went; those that are new say which tools they have."""
        there = {node.id: node for node in self._connection.nodes() if node.gpus}
        for node in self._nodes:
            node.alive = there.pop(node.id, None) is not None
        new = list(there.values())
        if not new:
            return
        nvcc, ptxas = self._settings.nvcc, self._settings.ptxas
        tools = find_toolchain(nvcc, ptxas)
        wanted = NodeFacts.here(tools.nvcc_version, tools.ptxas_version)
        ask = self._ray.remote(num_cpus=0, max_retries=0)(node_facts)
        asked = {ask.options(scheduling_strategy=self._connection.on(node)).remote(nvcc, ptxas): node for node in new}
        answered, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=CHECK_SECONDS)
        for reference in answered:
            asked[reference].reason = self._connection.difference(reference, wanted)
        self._nodes += new

    def _free_node(self) -> Node:
        """The first machine with a free GPU, however long that takes. Raises NoWorkerError if none is left."""
        began, told = time.monotonic(), False
        while True:
            self._await_usable()
            usable = [node for node in self._nodes if node.usable]
            free = self._connection.free_gpus()
            for node in usable:
                if free.get(node.id, 0) >= 1:
                    self._demand.forget()
                    return node
            self._demand.want(ONE_GPU)
            if not told and time.monotonic() - began > PATIENCE_SECONDS:
                names = ", ".join(node.name for node in usable)
                self._notice(f"waiting for a GPU: those of the cluster ({names}) are in use")
                told = True
            time.sleep(LOOK_SECONDS)


def _settings_on(node: Node, settings: Settings) -> Settings:
    """What the work gets: no database, and as many compilers at once as the machine has CPUs unless the user chose."""
    jobs = max(1, node.cpus) if settings.origins.get("jobs") == "default" else settings.jobs
    return replace(settings, database_url="", jobs=jobs)
