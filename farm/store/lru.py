"""A disk store that forgets: blobs of another store, as many as fit."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from farm.store.contract import blob_digest
from farm.store.disk import DiskStore

_SLACK = 20
"""A process looks through the folder after it has written this part of the limit, and leaves so much room."""


@dataclass(frozen=True, order=True)
class _CachedFile:
    used: int
    """When it was last read or written, in ns."""
    path: Path
    size: int


class CacheFolder(DiskStore):
    """Removes what was not used for longest. Any number of processes may use the folder at once.

    Each process looks only after what it wrote itself: for a while the folder may be above its limit by a twentieth
    for each of them.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        super().__init__(root)
        self._folder = root
        self._limit = limit_bytes
        self._written: int | None = None
        """Since this process last looked; None: it has not yet."""

    def get(self, digest: str) -> bytes | None:
        """The blob; None where it is missing or damaged."""
        data = super().get(digest)
        if data is not None:
            with suppress(OSError):  # removed by another process, or not ours to touch
                os.utime(self._blob(digest))
        return data

    def put(self, data: bytes) -> str:
        """Keeps a blob for a while, if it fits at all, and gives its digest."""
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
        """Removes files until the rest fits; what a killed process left half written goes the same way."""
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
