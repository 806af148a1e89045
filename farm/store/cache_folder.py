"""A size-limited LRU disk cache in front of another store."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from farm.store.contract import blob_digest
from farm.store.disk import DiskStore

_SLACK = 20
"""A process trims the folder after writing 1/20 of the limit, down to 1/20 below the limit."""


@dataclass(frozen=True, order=True)
class _CachedFile:
    used: int
    """Time of its last read or write, in ns."""
    path: Path
    size: int


class CacheFolder(DiskStore):
    """A disk store that removes the least recently used files. Any number of processes may use the folder at once.

    Each process counts only what it writes itself, so the folder may exceed its limit by a twentieth for each of them.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        super().__init__(root)
        self._folder = root / "v1"
        """Folder of the store's own files, the only one that is trimmed: users may keep other files next to it."""
        self._limit = limit_bytes
        self._written: int | None = None
        """Bytes that this process wrote since it last trimmed the folder; None: it has not trimmed it yet."""

    def get(self, digest: str) -> bytes | None:
        """The blob, checked against its digest; None if it is missing or damaged."""
        data = super().get(digest)
        if data is not None:
            with suppress(OSError):  # removed by another process, or another user's file
                os.utime(self._blob(digest))
        return data

    def put(self, data: bytes) -> str:
        """Caches a blob if it fits within the limit, and returns its digest."""
        if len(data) > self._limit:
            return blob_digest(data)
        digest = super().put(data)
        if self._written is not None:
            self._written += len(data)
        if self._written is None or self._written * _SLACK > self._limit:
            self._trim()
            self._written = 0
        return digest

    def _trim(self) -> None:
        """Removes the least recently used files, unfinished ones of killed processes too, until the rest fits."""
        files = sorted(self._cached())
        size = sum(file.size for file in files)
        if size <= self._limit:
            return
        for file in files:
            with suppress(OSError):
                file.path.unlink()
            size -= file.size
            if size * _SLACK <= self._limit * (_SLACK - 1):
                return

    def _cached(self) -> list[_CachedFile]:
        files = []
        for folder, _, names in os.walk(self._folder):
            for path in (Path(folder, name) for name in names):
                with suppress(OSError):  # another process removed it
                    status = path.stat()
                    files.append(_CachedFile(status.st_mtime_ns, path, status.st_size))
        return files
