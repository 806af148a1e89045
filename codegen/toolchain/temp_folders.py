"""Temporary folders that end with their process: what one that was killed left behind, others remove."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "farm-"
SUFFIX = ".lock"


class ScratchFolder:
    """A temporary folder; the file beside it is locked as long as this process lives.

    However a process ends, the kernel gives its locks back: by that `remove_abandoned` knows what nobody uses.
    """

    def __init__(self, kind: str) -> None:
        while True:
            self._lock, name = tempfile.mkstemp(prefix=f"{PREFIX}{kind}-", suffix=SUFFIX)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if Path(name).exists():
                break
            os.close(self._lock)  # somebody took it for abandoned before it was locked
        self._file = Path(name)
        self.path = _folder_of(self._file)
        self.path.mkdir(mode=0o700)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """The folder and all that is in it; what cannot be removed yet is abandoned."""
        _remove(self._file)
        os.close(self._lock)


def remove_abandoned() -> None:
    """Removes this user's folders whose process has ended, and leaves those in use."""
    for file in Path(tempfile.gettempdir()).glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):  # in use, just removed by its owner, or somebody else's
            descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_uid == os.getuid():
                    _remove(file)
            finally:
                os.close(descriptor)


def lock_of(folder: Path) -> Path:
    """The file whose lock says that the folder is in use."""
    return folder.with_name(folder.name + SUFFIX)


def _folder_of(file: Path) -> Path:
    return file.with_name(file.name.removesuffix(SUFFIX))


def _remove(file: Path) -> None:
    """The lock goes last: where the rest could not be removed, it is tried again another time."""
    folder = _folder_of(file)
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        file.unlink(missing_ok=True)
