"""CPU slots: a limit of one running tool per core of this machine, across independent processes.

A slot is a file in a shared folder, held by a lock on it. The tool inherits the lock, so the operating system frees the
slot when the tool ends, in whatever way, even if the process that started it is gone.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from codegen.errors import ToolchainError

_POLL_SECONDS = 0.02
"""Interval between attempts to lock a slot."""


@contextmanager
def cpu_slot(folder: Path, is_cancelled: Callable[[], bool]) -> Iterator[int | None]:
    """Waits for a free slot among this process's cores and yields the descriptor of its lock; None once cancelled.

    The slot stays occupied until the `with` block ends and all processes that inherited the descriptor have ended.
    Raises ToolchainError if the folder cannot be used.
    """
    lock = None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while (lock := _lock_slot(folder)) is None and not is_cancelled():
            time.sleep(_POLL_SECONDS)
    except OSError as error:
        raise ToolchainError(
            f"CPU slots cannot be locked in {folder} ({error}): name another folder in FARM_RUNTIME_DIR"
        ) from None
    try:
        yield lock
    finally:
        if lock is not None:
            os.close(lock)


def _lock_slot(folder: Path) -> int | None:
    for core in sorted(os.sched_getaffinity(0)):
        # Read-only, since the file may belong to another user of a shared folder.
        lock = os.open(folder / f"core{core}", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return lock
    return None
