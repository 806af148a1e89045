"""Executors: where requests run."""

from __future__ import annotations

from codegen.toolchain import Toolchain
from farm.executors.contract import Executor
from farm.executors.inline import InlineExecutor
from farm.settings import Settings
from farm.store.contract import Store
from farm.worker.build import Worker


def open_executor(settings: Settings, store: Store, toolchain: Toolchain) -> Executor:
    """The executor that the settings name. Starts nothing yet; raises UsageError if it cannot work with the store."""
    if settings.executor == "inline":
        return InlineExecutor(Worker.of(settings, store, toolchain))
    from farm.executors.cluster import ClusterExecutor

    return ClusterExecutor(settings, store, toolchain)
