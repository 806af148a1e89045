"""Executors, which run requests on workers, and GPU hosts, which run work on a GPU."""

from __future__ import annotations

from codegen.toolchain.tools import Toolchain
from farm.config.settings import Settings
from farm.executors.auto import AutomaticExecutor
from farm.executors.contract import Executor, Notice, no_notice
from farm.executors.gpu_host import GpuHost, LocalGpuHost
from farm.executors.inline import InlineExecutor
from farm.executors.processes import ProcessExecutor
from farm.store.contract import Store
from farm.store.signed import check_signs


def open_executor(
    settings: Settings,
    store: Store,
    toolchain: Toolchain,
    *,
    notice: Notice = no_notice,
    patience_seconds: float | None = None,
) -> Executor:
    """The executor that the settings name, not started yet.

    Raises UsageError if it cannot work with the store, or cannot sign its records. It waits `patience_seconds`
    for a machine (None: as the settings say) and calls `notice` while waiting.
    """

    def ray() -> Executor:
        from farm.executors.ray.builds import ClusterExecutor

        return ClusterExecutor(settings, store, toolchain, notice, patience_seconds)

    check_signs(store)
    if settings.executor == "inline":
        from farm.worker.build import Worker  # slow to import; the other executors build in other processes

        return InlineExecutor(Worker.of(settings, store, toolchain))
    if settings.executor == "processes":
        return ProcessExecutor(settings, store)
    if settings.executor == "ray" or settings.ray_address is not None:
        return ray()
    return AutomaticExecutor(ProcessExecutor(settings, store), ray, settings.jobs)


def open_gpu(settings: Settings, *, local: bool = False, notice: Notice = no_notice) -> GpuHost:
    """A GPU of the Ray cluster that the settings name; this machine's GPU if they name none, or with `local`."""
    if local or settings.executor == "inline" or settings.ray_address is None:
        return LocalGpuHost(settings)
    from farm.executors.ray.gpu import ClusterGpuHost

    return ClusterGpuHost(settings, notice)
