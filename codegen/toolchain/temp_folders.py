"""Temporary folders that are removed with their process: other processes remove those of a killed one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "farm-"
SUFFIX = ".lock"


class TempFolder:
    """A temporary folder with a lock file beside it, locked as long as this process lives.

    The operating system releases locks however a process ends: `remove_abandoned` then finds the folder unlocked.
    """

    def __init__(self, kind: str) -> None:
        while True:
            self._lock, name = tempfile.mkstemp(prefix=f"{PREFIX}{kind}-", suffix=SUFFIX)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if Path(name).exists():
                break
            os.close(self._lock)  # another process removed it before it was locked
        self._file = Path(name)
        self.path = _folder_of(self._file)
        self.path.mkdir(mode=0o700)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes the folder with its contents; if that fails, a later `remove_abandoned` retries."""
        _remove(self._file)
        os.close(self._lock)


def remove_abandoned() -> None:
    """Removes this user's temporary folders whose process has ended."""
    for file in Path(tempfile.gettempdir()).glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):  # in use, just removed by its owner, or another user's
            descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_uid == os.getuid():
                    _remove(file)
            finally:
                os.close(descriptor)


def lock_of(folder: Path) -> Path:
    """The lock file of a temporary folder."""
    return folder.with_name(folder.name + SUFFIX)


def _folder_of(file: Path) -> Path:
    return file.with_name(file.name.removesuffix(SUFFIX))


def _remove(file: Path) -> None:
    """Removes a folder, then its lock file, which remains for another attempt if the folder does."""
    folder = _folder_of(file)
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        file.unlink(missing_ok=True)
