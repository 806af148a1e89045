"""Machines that are wanted and not there: what a cluster's autoscaler sees of it, and how long they are waited for."""

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

MOST_CLAIMS = 64
"""At once. As machines come there are others, so that a cluster grows by and by to what the work needs."""
NOT_FOR_GPU_WORK = {"farm/work": "!gpu"}
"""A group of machines with the label farm/work=gpu is started for work on a GPU only: builds need no such machine."""
GONE_SECONDS = 30.0
"""How long another machine is waited for, at least, when the last one is gone."""
TELL_SECONDS = 30.0
"""How often it is said that there is no machine yet."""


@dataclass(frozen=True)
class Shape:
    """What a piece of work needs of a machine."""

    cpus: int = 0
    gpus: int = 0
    memory_bytes: int = 0


def come() -> None:
    """All that a claim does: the machine is there."""


class Demand:
    """Claims for machines: tasks that wait for one, of the shape of the work that has no room.

    The work itself is bound to machines that were checked, and what is bound asks an autoscaler for none. A claim may
    run on any machine but those that are known, so it is never served by one with other tools, and ends when a new one
    is there. It is Ray's own task: however this process ends, the demand ends with it.
    """

    def __init__(self, connection: RayConnection) -> None:
        self._connection = connection
        self._claims: dict[Any, Shape] = {}
        """By Ray's reference."""

    def want(self, shapes: Counter[Shape]) -> None:
        """So many machines' worth of work has no room now; what was wanted before and is not any more is forgotten."""
        ray = self._connection.ray
        if self._claims:
            ended, _ = ray.wait(list(self._claims), num_returns=len(self._claims), timeout=0)
            for reference in ended:
                del self._claims[reference]
        missing = shapes - Counter(self._claims.values())
        surplus = Counter(self._claims.values()) - shapes
        for reference, shape in list(self._claims.items()):
            if surplus[shape] > 0:
                surplus[shape] -= 1
                del self._claims[reference]
                ray.cancel(reference, force=True)
        if missing:
            elsewhere = self._connection.elsewhere()
            task = ray.remote(max_retries=0)(come)
            for shape in missing.elements():
                selector = elsewhere if shape.gpus else elsewhere | NOT_FOR_GPU_WORK
                claim = task.options(
                    num_cpus=shape.cpus, num_gpus=shape.gpus, memory=shape.memory_bytes, label_selector=selector
                )
                self._claims[claim.remote()] = shape

    def forget(self) -> None:
        """Nothing is wanted."""
        if self._claims:
            self.want(Counter())


class Patience:
    """How long machines that are not there are waited for, with a word every so often."""

    def __init__(self, connection: RayConnection, settings: Settings, notice: Notice, seconds: float | None) -> None:
        """`seconds` None: as the settings say where the cluster grows, or the user has set it, else not at all."""
        self._connection = connection
        self._settings = settings
        self._notice = notice
        self._seconds = seconds
        self._had_one = False
        self._since: float | None = None
        self._told_at = 0.0

    @property
    def shortage_seconds(self) -> float:
        """For a machine larger than those that are there: never forever, since the cluster may know none so large."""
        chosen = self._settings.origins.get("worker_wait_seconds", "default") != "default"
        return self._settings.worker_wait_seconds if chosen or self._connection.grows else 0.0

    def reset(self) -> None:
        """There is a machine."""
        self._had_one = True
        self._since = None

    def wait(self, what: str, missing: str, why: str, way_out: str) -> None:
        """There is none: says so now and then. Raises NoWorkerError once that has been so for too long.

        `what` is waited for, as in "worker"; `missing` says so as an error; `why` is wrong with those that are there.
        """
        now = time.monotonic()
        if self._since is None:
            self._since, self._told_at = now, now - TELL_SECONDS
        seconds = self.shortage_seconds if self._seconds is None else self._seconds
        seconds = max(seconds, GONE_SECONDS) if self._had_one else seconds
        because = f" ({why})" if why else ""
        if now - self._since >= seconds:
            waited = f"after {format_seconds(seconds)} " if seconds else ""
            raise NoWorkerError(f"{waited}{missing}{because}; {way_out}")
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            coming = "the cluster to start one" if self._connection.grows else "one to join the cluster"
            self._notice(f"no {what} yet: waiting for {coming}{because}")
