"""The cores of this machine, shared by processes that know nothing of each other: each tool runs on a core of its own.

A core is a file in a folder, and whoever has locked it has the core. The lock goes with the tool that runs: however
that ends, and whatever becomes of the process that started it, the kernel gives the core back.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from codegen.errors import ToolchainError

_LOOK_SECONDS = 0.02
"""How often it is looked for a free core."""


@contextmanager
def core_of(folder: Path, is_unwanted: Callable[[], bool]) -> Iterator[int | None]:
    """Waits for a core that no other process uses, of those that this one may run on; gives its lock, a descriptor.

    The core is in use until the `with` block has ended and so have the processes that inherited the descriptor. None:
    nobody wants it any more. Raises ToolchainError if the folder cannot be used.
    """
    lock = None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while (lock := _free_core(folder)) is None and not is_unwanted():
            time.sleep(_LOOK_SECONDS)
    except OSError as error:
        raise ToolchainError(
            f"which cores are in use cannot be seen in {folder} ({error}): name another folder in FARM_RUNTIME_DIR"
        ) from None
    try:
        yield lock
    finally:
        if lock is not None:
            os.close(lock)


def _free_core(folder: Path) -> int | None:
    for core in sorted(os.sched_getaffinity(0)):
        # For reading: in a folder that several users share, the file may be another's.
        lock = os.open(folder / f"core{core}", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return lock
    return None
