"""The folder of a local Ray's sockets and logs; those that a killed process left behind go with the next start."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "farm-ray-"
LOCK = "owner"


class RayFolder:
    """Locked as long as this process lives, however it ends: the kernel gives the lock back."""

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        new = self.path / f"{LOCK}.new"
        self._lock = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / LOCK)  # nobody sees it unlocked

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(parent: Path) -> None:
    """Removes the folders whose process has ended; leaves those of others and those in use."""
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # somebody else's, in use, or just removed by its owner
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
