"""Which requests this coordinator builds now, so that of several coordinators one builds each template and cubin."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from farm.ledger import Ledger
from farm.worker.requests import Request

AT_ONCE = 16
"""So many keys are asked for together."""
POLL_SECONDS = 0.5
"""How often what others build is asked for again, and what has ended is given back."""


class Flights:
    """The flights of one coordinator. A key that another one builds is set aside until that one is done, or dead."""

    def __init__(self, ledger: Ledger, coordinator: str) -> None:
        self._ledger = ledger
        self._coordinator = coordinator
        self._mine: dict[str, Request] = {}
        self._elsewhere: dict[str, Request] = {}
        self._asked_at = 0.0
        self._landed: list[str] = []
        self._landed_at = 0.0

    def has(self, key: str) -> bool:
        """Whether this coordinator may build the key already."""
        return key in self._mine

    def take_off(self, requests: Sequence[Request]) -> set[str]:
        """The keys that may be built now; the others are set aside."""
        new = [request.key for request in requests if request.key not in self._mine]
        granted = self._ledger.coordinators.take_off(self._coordinator, new)
        for request in requests:
            if request.key in granted:
                self._mine[request.key] = request
            elif request.key not in self._mine:
                self._elsewhere[request.key] = request
        return {request.key for request in requests} & self._mine.keys()

    def come_back(self) -> list[Request]:
        """What was set aside and is now this coordinator's; most likely the store has it."""
        if not self._elsewhere or time.monotonic() - self._asked_at < POLL_SECONDS:
            return []
        self._asked_at = time.monotonic()
        granted = self._ledger.coordinators.take_off(self._coordinator, list(self._elsewhere))
        back = {key: self._elsewhere.pop(key) for key in granted}
        self._mine |= back
        return list(back.values())

    def keep(self, needed: Callable[[Request], bool]) -> None:
        """Forgets what is no longer needed."""
        self._elsewhere = {key: request for key, request in self._elsewhere.items() if needed(request)}
        for key in [key for key, request in self._mine.items() if not needed(request)]:
            self.done(key)

    def done(self, key: str) -> None:
        """It is built, or given up."""
        if key in self._mine:
            del self._mine[key]
            self._landed.append(key)

    def land(self) -> None:
        """Lets others have what is done, once there is some of it, and at once when nothing more is to come."""
        if self._landed and (not self._mine or time.monotonic() - self._landed_at >= POLL_SECONDS):
            self._ledger.coordinators.land(self._coordinator, self._landed)
            self._landed = []
            self._landed_at = time.monotonic()
