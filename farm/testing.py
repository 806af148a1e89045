"""A farm within one process: for tests and examples."""

from __future__ import annotations

from pathlib import Path

from farm.api import Farm
from farm.config.settings import Settings, load_settings
from farm.ledger import open_ledger
from farm.store.memory import MemoryStore


def laptop_settings(folder: Path) -> Settings:
    """Everything below the folder, nothing from the environment or a configuration file; builds run inline."""
    return load_settings(
        environ={
            "FARM_STORE": f"file://{folder / 'store'}",
            "FARM_DATABASE_URL": f"sqlite:///{folder / 'farm.db'}",
            "FARM_EXECUTOR": "inline",
            "FARM_JOBS": "2",
            "FARM_RUNTIME_DIR": str(folder / "run"),
            "FARM_SUBMITTER": "tester",
        },
    )


def laptop_farm(folder: Path) -> Farm:
    """A farm with its store in memory, its ledger in the folder, and no other process but the CUDA tools."""
    settings = laptop_settings(folder)
    return Farm(settings, MemoryStore(), open_ledger(settings))
