"""Stores: bytes under their digest, and action records."""

from __future__ import annotations

from pathlib import Path

from farm.settings import Settings
from farm.store.contract import Store
from farm.store.disk import DiskStore


def open_store(settings: Settings) -> Store:
    """The configured store; nothing is created before the first write."""
    return DiskStore(Path(settings.store_url.removeprefix("file://")), read_only=settings.read_only)
