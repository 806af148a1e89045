"""A process of a pool of Python's own, which must not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal

_END_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""


def end_with(parent: int) -> None:
    """Whatever ends the process that started this one ends this one; Ctrl-C is for that one to hear."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
