"""Where work on a GPU runs: on the GPU of this machine, or on one in the Ray cluster that the settings name."""

from __future__ import annotations

from farm.config.settings import Settings
from farm.executors.contract import Notice, no_notice
from farm.executors.gpu_host import GpuHost, LocalGpuHost


def open_gpu(settings: Settings, *, local: bool = False, notice: Notice = no_notice) -> GpuHost:
    """The GPU of the cluster if the settings name one, else of this machine; with `local` always this machine's."""
    if local or settings.executor == "inline" or settings.ray_address is None:
        return LocalGpuHost(settings)
    from farm.executors.ray.gpu import ClusterGpuHost

    return ClusterGpuHost(settings, notice)
