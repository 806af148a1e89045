"""An executor with a store and real tools, for the tests of executors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from codegen.ir.checkpoint import Layer
from codegen.ir.tiling import Part
from codegen.selection.choose import choose_tiling
from codegen.toolchain.tools import find_toolchain
from farm.config.settings import Settings
from farm.executors import open_executor
from farm.executors.contract import Executor
from farm.jobs.model import Build, BuildOptions, Job, Status
from farm.scheduler.plan import Plan, plan
from farm.store import open_store
from farm.store.contract import Store
from farm.testing import laptop_settings
from farm.worker.messages import Request, Result

PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Workplace:
    """An executor with the store that its workers use."""

    executor: Executor
    store: Store
    settings: Settings

    def plan(self, *layers: Layer, archs: tuple[str, ...] = ("sm_80", "sm_90"), parts: int = 1) -> Plan:
        """Requests for these layers, each cut into that many parts of one K group; their weights are in the store."""
        cut = tuple(Part(i, i + 1) for i in range(parts))
        job = Job(
            "job", "s", "ada", "net", "/net.onnx", "cd" * 32, BuildOptions(archs), Status.RUNNING, "", "",
            0, 0, 0, 1, datetime.now(UTC),
        )  # fmt: skip
        builds = []
        for i, each in enumerate(layers):
            tiling = choose_tiling(each.spec, 64, each.weights.nonzeros_per_output)
            tiling = replace(tiling, group_outputs=-(-each.spec.output_channels // parts))
            weights = self.store.put(each.weights.to_bytes())
            nonzeros = each.weights.nonzeros
            builds.append(Build(i, "job", i, each.name, "x", "y", each.spec, tiling, weights, nonzeros, weights, cut))
        return plan([(job, builds)], find_toolchain(self.settings.nvcc, self.settings.ptxas))

    def do(self, *requests: Request) -> list[Result]:
        for request in requests:
            self.executor.submit(request)
        return self.collect(len(requests))

    def collect(self, count: int) -> list[Result]:
        results: list[Result] = []
        end = time.monotonic() + PATIENCE_SECONDS
        while len(results) < count:
            assert time.monotonic() < end, f"{len(results)} of {count} results came"
            results += self.executor.wait(1.0)
        return results


@contextmanager
def workplace(folder: Path, executor: str, ptxas: Path | None = None) -> Iterator[Workplace]:
    settings = replace(laptop_settings(folder), executor=executor, ptxas=ptxas, jobs=2)
    store = open_store(settings)
    with open_executor(settings, store, find_toolchain(settings.nvcc, settings.ptxas)) as opened:
        yield Workplace(opened, store, settings)
