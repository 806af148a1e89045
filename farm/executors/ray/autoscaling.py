"""Missing nodes: placeholder tasks that make an autoscaler start them, and the wait until they come."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from farm.config.settings import Settings
from farm.config.units import format_seconds
from farm.errors import NoWorkerError
from farm.executors.contract import Notice
from farm.executors.ray.connection import RayConnection

MAX_PLACEHOLDERS = 64
"""Most placeholder tasks at once; new ones follow as nodes start, so that a cluster grows step by step."""
NOT_FOR_GPU_WORK = {"farm/work": "!gpu"}
"""Label selector that keeps builds from starting nodes labelled farm/work=gpu, which are for work on a GPU only."""
GONE_SECONDS = 30.0
"""Least wait for a new node after the last one is gone."""
TELL_SECONDS = 30.0
"""Interval of the notices while waiting."""


@dataclass(frozen=True)
class Resources:
    """Resources that a request needs on a node."""

    cpus: int = 0
    gpus: int = 0
    memory_bytes: int = 0


def placeholder() -> None:
    """Body of a placeholder task: it starts only on a new node, and then its work is done."""


class ResourceDemand:
    """Demand for nodes that an autoscaler sees: pending placeholder tasks with the resources of unplaced requests.

    Requests are pinned to checked nodes, and an autoscaler starts no node for a pinned task. A placeholder may run on
    any node except the known ones, so it waits for a new node and ends there. The demand ends with this process,
    because Ray drops the tasks of a driver that ends.
    """

    def __init__(self, connection: RayConnection) -> None:
        self._connection = connection
        self._placeholders: dict[Any, Resources] = {}
        """Resources of the pending placeholders, by Ray's object reference."""

    def update(self, wanted: Counter[Resources]) -> None:
        """Replace the demand: submits missing placeholders and cancels surplus ones."""
        ray = self._connection.ray
        if self._placeholders:
            ended, _ = ray.wait(list(self._placeholders), num_returns=len(self._placeholders), timeout=0)
            for reference in ended:
                del self._placeholders[reference]
        missing = wanted - Counter(self._placeholders.values())
        surplus = Counter(self._placeholders.values()) - wanted
        for reference, resources in list(self._placeholders.items()):
            if surplus[resources] > 0:
                surplus[resources] -= 1
                del self._placeholders[reference]
                ray.cancel(reference, force=True)
        if missing:
            elsewhere = self._connection.elsewhere()
            task = ray.remote(max_retries=0)(placeholder)
            for resources in missing.elements():
                selector = elsewhere if resources.gpus else elsewhere | NOT_FOR_GPU_WORK
                options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "memory": resources.memory_bytes}
                reference = task.options(**options, label_selector=selector).remote()
                self._placeholders[reference] = resources

    def forget(self) -> None:
        """Cancel all placeholders."""
        if self._placeholders:
            self.update(Counter())


class NodeWait:
    """The wait for a node, with notices and a time limit."""

    def __init__(self, connection: RayConnection, settings: Settings, notice: Notice, seconds: float | None) -> None:
        """`seconds` None: FARM_WORKER_WAIT if the cluster grows or the user has set it, else no wait."""
        self._connection = connection
        self._settings = settings
        self._notice = notice
        self._seconds = seconds
        self._had_one = False
        self._since: float | None = None
        self._told_at = 0.0

    @property
    def shortage_seconds(self) -> float:
        """Time limit of the wait for a larger node; finite, because the cluster may have no such node type."""
        chosen = self._settings.origins.get("worker_wait_seconds", "default") != "default"
        return self._settings.worker_wait_seconds if chosen or self._connection.grows else 0.0

    def reset(self) -> None:
        """End the wait: there is a node."""
        self._had_one = True
        self._since = None

    def wait(self, what: str, missing: str, why: str, way_out: str) -> None:
        """Note that there is no node, and send a notice now and then. Raises NoWorkerError at the time limit.

        `what` names the node in notices ("worker"), `missing` is the error message, `why` says what is wrong with the
        present nodes.
        """
        now = time.monotonic()
        if self._since is None:
            self._since, self._told_at = now, now - TELL_SECONDS
        seconds = self.shortage_seconds if self._seconds is None else self._seconds
        seconds = max(seconds, GONE_SECONDS) if self._had_one else seconds
        because = f" ({why})" if why else ""
        if now - self._since >= seconds:
            waited = f"after {format_seconds(seconds)} " if seconds else ""
            raise NoWorkerError(f"{waited}{missing}{because}. {way_out}.")
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            coming = "the cluster to start one" if self._connection.grows else "one to join the cluster"
            self._notice(f"no {what} yet: waiting for {coming}{because}")
