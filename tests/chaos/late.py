"""Processes that may take longer to end than the round that ends them."""

from __future__ import annotations

import os
import select
import time

SECONDS = 90.0
"""For how long, at most: Ray's agents report to a head that died too, and Ray gives that call 60 s."""


class LateProcesses:
    """Noted in the round, waited for after all rounds."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        """By process id: a descriptor stays that of its process when the id is another's."""

    def note(self, pid: int) -> None:
        self._descriptors[pid] = os.pidfd_open(pid)

    def running(self) -> set[int]:
        for pid, descriptor in list(self._descriptors.items()):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if poll.poll(0):
                os.close(self._descriptors.pop(pid))
        return set(self._descriptors)

    def left(self) -> set[int]:
        """Processes that did not end in time."""
        end = time.monotonic() + SECONDS
        while (running := self.running()) and time.monotonic() < end:
            time.sleep(0.05)
        return running
