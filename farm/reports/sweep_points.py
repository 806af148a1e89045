"""Checkpoints of a sweep compared: sparsity, code size, compile time and predicted time of each architecture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from farm.jobs.kernel_times import build_microseconds
from farm.jobs.model import Job, JobDetail, Status


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
    """Sum over the layers at the job's largest batch size, by the cost model."""

    @property
    def sparsity(self) -> float:
        """Zeros / weights, 0 to 1."""
        return 1 - self.nonzeros / self.weights


def sweep_points(details: Iterable[JobDetail]) -> Iterator[SweepPoint]:
    """The points of the jobs that succeeded, in order of jobs and architectures."""
    for detail in details:
        options = detail.job.options
        for arch in options.archs if detail.job.status is Status.SUCCEEDED else ():
            builds = [build for build in detail.builds if arch in build.archs(options)]
            timed = [build for build in builds if build.serves(arch, options.batches[-1], options)]
            layers = {build.position: build for build in builds}.values()
            results = [result for result in detail.results if result.arch == arch]
            yield SweepPoint(
                detail.job,
                arch,
                sum(build.spec.weights_count for build in layers),
                sum(build.nonzeros for build in layers),
                sum(result.cubin_bytes for result in results),
                sum(result.rewrite_seconds + result.ptxas_seconds for result in results),
                sum(build_microseconds(build, options.batches[-1], options.device(arch)) for build in timed),
            )
