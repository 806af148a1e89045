"""Holds interruptions back while a transaction that writes is open.

A KeyboardInterrupt may come between a transaction's begin and the block that would roll it back. Its traceback then
keeps the connection, and with it the database's lock, so that the clean-up after the interruption waits for itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM until the block ends, in the main thread; their Python handler is called then.

    A second signal is handled at once. Python handles signals only in the main thread, so others need no protection.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _HOLDER.hold()
    try:
        yield
    finally:
        _HOLDER.release()


class _Holder:
    """One handler in front of the others.

    The others may raise while handlers are exchanged, so that this one stays in front: it then only passes signals on,
    and the next release removes it. Hence one object for the process, never in front of itself.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._holds = False
        self._waiting: int | None = None

    def hold(self) -> None:
        self._waiting = None
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler != self._handle:
                self._handlers[number] = handler
                signal.signal(number, self._handle)
        self._holds = True  # last: nothing may be held if a handler has raised before

    def release(self) -> None:
        self._holds = False
        waiting, self._waiting = self._waiting, None
        for number in SIGNALS:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, self._handlers[number])
        if waiting is not None:
            self._handlers[waiting](waiting, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._holds and self._waiting is None:
            self._waiting = number
        else:
            self._holds = False
            self._handlers[number](number, frame)


_HOLDER = _Holder()
