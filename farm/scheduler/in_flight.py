"""What the ledger is told of the keys that this coordinator builds, so that of several one builds each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from farm.scheduler.clock import Clock

AT_ONCE = 16
"""So many keys are asked for together."""
POLL_SECONDS = 0.5
"""How often what others build is asked for again, and what has ended is given back."""


class Tower(Protocol):
    """Who knows of all coordinators' flights: the ledger."""

    def take_off(self, coordinator: str, keys: Sequence[str]) -> set[str]:
        """Those of the keys that this coordinator may build now."""

    def land(self, coordinator: str, keys: Sequence[str]) -> None:
        """Others may have them."""


class Flights:
    """The flights of one coordinator. Its pieces say which keys it has; what it gives back is told some at a time."""

    def __init__(self, tower: Tower, coordinator: str, clock: Clock) -> None:
        self._tower = tower
        self._coordinator = coordinator
        self._clock = clock
        self._landed: dict[str, None] = {}
        self._landed_at = -POLL_SECONDS
        self._asked_at = -POLL_SECONDS

    def take_off(self, keys: Collection[str]) -> set[str]:
        """Those of the keys that may be built now: nobody else builds them."""
        for key in keys:
            self._landed.pop(key, None)  # ours still
        return self._tower.take_off(self._coordinator, list(keys)) if keys else set()

    def ask_again(self, keys: Collection[str]) -> set[str]:
        """The same for keys that others had, every now and then."""
        if not keys or self._clock.now() - self._asked_at < POLL_SECONDS:
            return set()
        self._asked_at = self._clock.now()
        return self.take_off(keys)

    def land(self, key: str) -> None:
        """It is built, or given up."""
        self._landed[key] = None

    def tell(self, *, at_once: bool) -> None:
        """Lets others have what has landed: some at a time, or what there is at once."""
        if self._landed and (at_once or self._clock.now() - self._landed_at >= POLL_SECONDS):
            self._tower.land(self._coordinator, list(self._landed))
            self._landed = {}
            self._landed_at = self._clock.now()
