"""Checkpoints of a sweep compared: sparsity, code size, compile time and predicted time of each architecture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from codegen.ir.layer_spec import LIKELY_ROWS
from codegen.kernels import tiled
from codegen.selection.cost_model import predict_microseconds
from farm.jobs.model import Build, Job, JobDetail, Status


@dataclass(frozen=True)
class SweepPoint:
    """One checkpoint on one architecture."""

    job: Job
    arch: str
    weights: int
    """Weights of the compiled layers, zeros included."""
    nonzeros: int
    cubin_bytes: int
    compile_seconds: float
    """Time of rewriting and assembling, also of cubins that came from the cache; templates are shared."""
    predicted_microseconds: float
    """Sum over the layers at the job's batch, by the cost model."""

    @property
    def sparsity(self) -> float:
        """Zeros / weights, 0 to 1."""
        return 1 - self.nonzeros / self.weights


def predicted_microseconds(job: Job, build: Build, arch: str) -> float:
    """Time of one launch of a layer at the job's batch, by the cost model."""
    divided, density = tiled(build.spec, build.tiling), build.nonzeros / build.spec.weights_count
    batch = job.options.batch * (build.rows or LIKELY_ROWS)
    return predict_microseconds(divided, batch, density, device=job.options.device(arch))


def sweep_points(details: Iterable[JobDetail]) -> Iterator[SweepPoint]:
    """The points of the jobs that succeeded, in order of jobs and architectures."""
    for detail in details:
        for arch in detail.job.options.archs if detail.job.status is Status.SUCCEEDED else ():
            builds = [build for build in detail.builds if arch in build.archs(detail.job.options)]
            results = [result for result in detail.results if result.arch == arch]
            yield SweepPoint(
                detail.job,
                arch,
                sum(build.spec.weights_count for build in builds),
                sum(build.nonzeros for build in builds),
                sum(result.cubin_bytes for result in results),
                sum(result.rewrite_seconds + result.ptxas_seconds for result in results),
                sum(predicted_microseconds(detail.job, build, arch) for build in builds),
            )
