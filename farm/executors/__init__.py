"""Executors: where requests run."""

from __future__ import annotations

from codegen.toolchain.tools import Toolchain
from farm.config.settings import Settings
from farm.executors.auto import AutomaticExecutor
from farm.executors.contract import Executor, Notice, no_notice
from farm.executors.inline import InlineExecutor
from farm.executors.processes import ProcessExecutor
from farm.store.contract import Store


def open_executor(
    settings: Settings,
    store: Store,
    toolchain: Toolchain,
    *,
    notice: Notice = no_notice,
    patience_seconds: float | None = None,
) -> Executor:
    """The executor that the settings name. Starts nothing yet; raises UsageError if it cannot work with the store.

    A machine for the work is waited for `patience_seconds`, None: as the settings say; `notice` is told meanwhile.
    """

    def ray() -> Executor:
        from farm.executors.ray.builds import ClusterExecutor

        return ClusterExecutor(settings, store, toolchain, notice, patience_seconds)

    if settings.executor == "inline":
        from farm.worker.build import Worker  # with all that makes machine code: the others build elsewhere

        return InlineExecutor(Worker.of(settings, store, toolchain))
    if settings.executor == "processes":
        return ProcessExecutor(settings, store)
    if settings.executor == "ray" or settings.ray_address is not None:
        return ray()
    return AutomaticExecutor(ProcessExecutor(settings, store), ray, settings.jobs)
