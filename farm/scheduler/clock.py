"""The clock that a coordinator goes by."""

from __future__ import annotations

import time


class Clock:
    """The monotonic one; tests play another."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Lets so much time pass."""
        time.sleep(seconds)
