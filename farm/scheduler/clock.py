"""The clock of a coordinator."""

from __future__ import annotations

import time


class Clock:
    """The monotonic clock; tests substitute their own."""

    def now(self) -> float:
        """Seconds since an arbitrary moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block for a number of seconds."""
        time.sleep(seconds)
