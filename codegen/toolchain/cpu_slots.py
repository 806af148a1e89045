"""CPU slots: a limit of one running tool per core of this machine, across independent processes.

A slot is a file in a shared folder, held by a lock on it. The tool inherits the lock, so the operating system frees the
slot when the tool ends, in whatever way, even if the process that started it is gone. A process that waits holds a
shared lock on a file beside the slots, so that /proc/locks names both who waits and who holds.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from codegen.errors import ToolchainError

_POLL_SECONDS = 0.02
"""Interval between attempts to lock a slot."""
_WAITING = "waiting"
"""File on which waiting processes hold a shared lock."""
_NAMED = 3
"""Most processes that are named as holders."""
_LOCKS = Path("/proc/locks")


@dataclass(frozen=True)
class SlotWait:
    """A wait for a CPU slot."""

    holders: tuple[int, ...]
    """PIDs of the processes that locked the slots; without those of other containers."""

    @property
    def text(self) -> str:
        """The wait in words, with the holders."""
        named = [str(pid) for pid in self.holders[:_NAMED]]
        if not named:
            return "waiting for a core held by another process"
        if more := len(self.holders) - len(named):
            named.append(f"{more} more")
        return f"waiting for a core held by process {' or '.join(filter(None, (', '.join(named[:-1]), named[-1])))}"


@contextmanager
def cpu_slot(folder: Path, is_cancelled: Callable[[], bool]) -> Iterator[int | None]:
    """Waits for a free slot among this process's cores and yields the descriptor of its lock; None once cancelled.

    The slot stays occupied until the `with` block ends and all processes that inherited the descriptor have ended.
    Raises ToolchainError if the folder cannot be used.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (lock := _lock_slot(folder)) is None:
            lock = _wait_for_slot(folder, is_cancelled)
    except OSError as error:
        raise ToolchainError(
            f"CPU slots cannot be locked in {folder} ({error}): name another folder in FARM_RUNTIME_DIR"
        ) from None
    try:
        yield lock
    finally:
        if lock is not None:
            os.close(lock)


def slot_wait(folder: Path) -> SlotWait | None:
    """The wait of this process's tools, and of its descendants', for a slot in the folder.

    None if no tool waits, or one runs: then they share the slots that they have.
    """
    try:
        locks = _locks(folder)
        if not any(map(_is_ours, locks.get(_WAITING, ()))):
            return None
        holders = sorted({pid for core in _cores() for pid in locks.get(core, ())})
        return None if any(map(_is_ours, holders)) else SlotWait(tuple(holders))
    except OSError:
        return None  # nothing is known without /proc


def _wait_for_slot(folder: Path, is_cancelled: Callable[[], bool]) -> int | None:
    with ExitStack() as stack:
        waiting = _open(folder / _WAITING)
        stack.callback(os.close, waiting)
        fcntl.flock(waiting, fcntl.LOCK_SH)
        while (lock := _lock_slot(folder)) is None and not is_cancelled():
            time.sleep(_POLL_SECONDS)
        return lock


def _cores() -> list[str]:
    """Names of the slots of this process's cores."""
    return [f"core{core}" for core in sorted(os.sched_getaffinity(0))]


def _open(path: Path) -> int:
    """Opens a file for a lock: read-only, since it may belong to another user of a shared folder."""
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)


def _locks(folder: Path) -> dict[str, list[int]]:
    """PIDs of the processes that locked the files of a folder, by the file's name."""
    status = {path.name: path.stat() for path in folder.iterdir()}
    names = {f"{os.major(s.st_dev):02x}:{os.minor(s.st_dev):02x}:{s.st_ino}": name for name, s in status.items()}
    found: dict[str, list[int]] = {}
    for line in _LOCKS.read_text().splitlines():  # "1: FLOCK  ADVISORY  WRITE 10860 fe:00:2146895 0 EOF"
        kind, _, _, pid, file = line.split()[1:6]
        if kind == "FLOCK" and file in names:
            found.setdefault(names[file], []).append(int(pid))
    return found


def _is_ours(pid: int) -> bool:
    """Whether a process is this one or descends from it."""
    while pid > 1 and pid != os.getpid():
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False  # it has ended
    return pid == os.getpid()


def _lock_slot(folder: Path) -> int | None:
    for core in _cores():
        lock = _open(folder / core)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return lock
    return None
