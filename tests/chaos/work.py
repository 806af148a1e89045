"""The work of the farm in every round, and its results when nothing goes wrong."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.ir.checkpoint import Checkpoint
from codegen.ir.layer_spec import Conv2d, Linear
from farm.api import Farm
from farm.jobs.model import BuildOptions, BuildResult, JobDetail, Status
from farm.scheduler.retry import LOWER_LEVEL
from farm.store import open_store
from farm.testing import laptop_settings
from tests.samples import SMALL, checkpoint, layer

OPTIONS = BuildOptions(("sm_80", "sm_90"), assembler="ptxas")
CONV = Conv2d(2, 10, 10, 8, 3, 3)
LINEAR = Linear(64, 16)

Name = tuple[str, str, str, int, int]
"""Name of a cubin: checkpoint, layer, architecture, part, level of ptxas."""


def checkpoints() -> list[Checkpoint]:
    """Three steps of pruning, of which one layer stays as it is."""
    shared = layer("conv1", SMALL, sparsity=0.5)
    return [
        checkpoint(
            shared,
            layer("conv2", CONV, sparsity=0.5, seed=seed),
            layer("fc", LINEAR, sparsity=0.5, seed=seed),
            name=f"net{seed}",
        )
        for seed in range(3)
    ]


def named_results(detail: JobDetail) -> dict[Name, BuildResult]:
    """The results of a job, under names that are the same in every round."""
    return {
        (detail.job.name, build.layer, each.arch, each.part, each.optimisation): each
        for build in detail.builds
        for each in detail.results_of(build)
    }


@dataclass(frozen=True)
class Undisturbed:
    """The work of a round without any fault."""

    cubins: dict[Name, bytes]
    """At the level that is asked for, and at the one that is tried where ptxas takes too long."""
    seconds: float
    """At the level that is asked for, by one process."""
    templates: int
    builds: int
    """Distinct cubins at the level that is asked for."""


def undisturbed() -> Undisturbed:
    cubins: dict[Name, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        settings = laptop_settings(Path(folder))
        store: Any = open_store(settings)
        with Farm.open(settings) as farm:
            start = time.monotonic()
            details = _compile(farm, OPTIONS)
            seconds = time.monotonic() - start
            results = [each for detail in details for each in detail.results]
            lower = _compile(farm, BuildOptions(OPTIONS.archs, optimisation=LOWER_LEVEL))
        for detail in [*details, *lower]:
            for name, result in named_results(detail).items():
                cubins[name] = store.get(result.cubin)
    return Undisturbed(
        cubins, seconds, len({each.template_key for each in results}), len({each.cubin_key for each in results})
    )


def _compile(farm: Farm, options: BuildOptions) -> list[JobDetail]:
    jobs = farm.compile(checkpoints(), options)
    assert all(job.status is Status.SUCCEEDED for job in jobs), jobs
    return [farm.inspect(job.id) for job in jobs]
