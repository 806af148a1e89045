"""The cost in speed of cubins that the GPUs of several architectures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from codegen.target.arch import served_archs
from codegen.target.device_model import DeviceModel
from farm.jobs.kernel_times import build_microseconds
from farm.jobs.model import BuildOptions, NewJob


@dataclass(frozen=True)
class SharedCost:
    """Kernel times of a model on a GPU that runs another architecture's cubins, by the cost model."""

    arch: str
    """Architecture of the cubins."""
    device: DeviceModel
    batch: int
    microseconds: float
    own_microseconds: float
    """Time with cubins of the GPU's own architecture."""


def apart(options: BuildOptions, known: Sequence[str]) -> BuildOptions | None:
    """Options that compile for each architecture that shares cubins instead; None if none does."""
    others = [each for arch in options.shared for each in served_archs(arch) if each not in options.archs]
    archs = tuple(each for each in dict.fromkeys(others) if each in known)
    return replace(options, archs=archs, gpus=(), shared=()) if archs else None


def shared_costs(job: NewJob, own: NewJob) -> tuple[SharedCost, ...]:
    """The costs of a job; `own` has its model for the architectures that share the job's cubins."""
    return tuple(
        SharedCost(
            made, device, batch, _microseconds(job, made, device, batch), _microseconds(own, arch, device, batch)
        )
        for made in job.options.shared
        for arch in own.options.archs
        if arch in served_archs(made)
        for device in [own.options.device(arch)]
        for batch in job.options.batches
    )


def _microseconds(job: NewJob, arch: str, device: DeviceModel, batch: int) -> float:
    builds = (build for build in job.builds if build.serves(arch, batch, job.options))
    # Measured times are of some architectures' tilings only: both sides are predicted.
    return sum(build_microseconds(replace(build, choices=()), batch, device) for build in builds)
