"""A cold sweep through one coordinator: when its jobs end, and how well it knows that beforehand."""

from __future__ import annotations

import os
import time

from codegen.frontend.onnx.reader import read_checkpoint
from farm.api import Farm
from farm.config.settings import load_settings
from farm.jobs.model import BuildOptions, Job, Status
from farm.scheduler.progress import Progress, RunStatus
from tests.benchmarks import sweep
from tests.benchmarks.ledger import folder

STEPS = 4
OPTIONS = BuildOptions(("sm_80", "sm_90"))
SHOWN = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Shares of the work at which the prediction is compared with what came."""


class Watch(Progress):
    """Notes the estimates with their times."""

    def __init__(self) -> None:
        self.said: list[tuple[float, RunStatus]] = []
        self.ended: list[tuple[float, Job]] = []

    def status_changed(self, status: RunStatus) -> None:
        self.said.append((time.monotonic(), status))

    def job_done(self, job: Job) -> None:
        assert job.status is Status.SUCCEEDED, job.reason
        self.ended.append((time.monotonic(), job))


def outlook() -> None:
    """A cold sweep of 12 checkpoints: from a tenth of the work on, its end is known to a factor of 1.5."""
    with folder() as path:
        settings = load_settings(
            {
                "FARM_STORE": f"file://{path / 'store'}",
                "FARM_DATABASE_URL": f"sqlite:///{path / 'farm.db'}",
                "FARM_JOBS": str(len(os.sched_getaffinity(0))),
            }
        )
        paths = [each for name in sweep.NETWORKS for each in sweep.write_sweep(path, name, STEPS)]
        with Farm.open(settings) as farm:
            farm.submit([read_checkpoint(each) for each in paths], OPTIONS)
            watch = Watch()
            start = time.monotonic()
            farm.serve(watch, drain=True)
    end = watch.ended[-1][0]
    print(f"  {len(paths)} checkpoints, {watch.said[-1][1].total} cubins: {end - start:.0f} s")
    print("  jobs ended after", " ".join(f"{at - start:.0f}" for at, _ in watch.ended), "s")
    print("  work done   after   said to be left   was left")
    for share in SHOWN:
        at, status = next(each for each in watch.said if each[1].estimate.share >= share)
        left = status.estimate.left_seconds or 0.0
        print(f"  {share:9.0%} {at - start:5.0f} s {left:15.0f} s {end - at:8.0f} s   {left / (end - at):.2f}x")
    late = [(at, each.estimate) for at, each in watch.said if each.estimate.share >= 0.1 and end - at > 5.0]
    worst = max(max((p.left_seconds or 0.0) / (end - at), (end - at) / (p.left_seconds or 1e-9)) for at, p in late)
    print(f"  from a tenth of the work on, until 5 s before the end: within {worst:.2f}x, {len(late)} predictions")
