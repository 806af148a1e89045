"""A farm within one process, for tests and examples."""

from __future__ import annotations

from pathlib import Path

from farm.api import Farm
from farm.config.settings import Settings, load_settings
from farm.ledger import open_ledger
from farm.store.memory import MemoryStore


def laptop_settings(folder: Path) -> Settings:
    """Settings with all files below a folder, independent of environment and configuration; builds run inline."""
    return load_settings(
        environ={
            "FARM_STORE": f"file://{folder / 'store'}",
            "FARM_DATABASE_URL": f"sqlite:///{folder / 'farm.db'}",
            "FARM_EXECUTOR": "inline",
            "FARM_JOBS": "2",
            "FARM_RUNTIME_DIR": str(folder / "run"),
            "FARM_SUBMITTER": "tester",
        }
    )


def laptop_farm(folder: Path) -> Farm:
    """A farm with its store in memory, its ledger in a folder, and no processes but the CUDA tools."""
    settings = laptop_settings(folder)
    return Farm(settings, MemoryStore(), open_ledger(settings))
