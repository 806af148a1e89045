"""Keys being built, so that each is built by one coordinator only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from farm.scheduler.clock import Clock

KEYS_AT_ONCE = 16
"""Keys acquired in one transaction."""
POLL_SECONDS = 0.5
"""Interval between two attempts to acquire keys of other coordinators, and between two releases."""


class KeyRegistry(Protocol):
    """The keys that all coordinators are building, as the ledger records them."""

    def acquire_keys(self, coordinator: str, keys: Sequence[str], *, local: bool) -> Mapping[str, int]:
        """Acquire keys that no live coordinator builds; returns those that it holds now, with their crashes so far."""

    def count_crash(self, key: str) -> None:
        """Count a worker that died while it built a key."""

    def release_keys(self, coordinator: str, keys: Sequence[str]) -> None:
        """Release keys of a coordinator, so that others may acquire them."""


class InFlightKeys:
    """The keys that one coordinator is building. Released keys reach the registry in batches."""

    def __init__(self, registry: KeyRegistry, coordinator: str, clock: Clock) -> None:
        self._registry = registry
        self._coordinator = coordinator
        self._clock = clock
        self._released: dict[str, None] = {}
        """Released here, but not in the registry yet."""
        self._released_at = -POLL_SECONDS
        self._asked_at = -POLL_SECONDS

    def acquire(self, keys: Collection[str], *, local: bool) -> Mapping[str, int]:
        """Acquire keys; returns those that this coordinator may build now, with their crashes so far.

        `local`: they are built on this machine, so that an end of this process counts as a crash of each.
        """
        for key in keys:
            self._released.pop(key, None)  # still ours in the registry
        return self._registry.acquire_keys(self._coordinator, list(keys), local=local) if keys else {}

    def acquire_later(self, keys: Collection[str], *, local: bool) -> Mapping[str, int]:
        """Acquire keys that another coordinator held, at most once per POLL_SECONDS."""
        if not keys or self._clock.now() - self._asked_at < POLL_SECONDS:
            return {}
        self._asked_at = self._clock.now()
        return self.acquire(keys, local=local)

    def count_crash(self, key: str) -> None:
        """Count a worker that died while it built a key."""
        self._registry.count_crash(key)

    def release(self, key: str) -> None:
        """Release a key that is built or given up."""
        self._released[key] = None

    def flush(self, *, at_once: bool) -> None:
        """Send the released keys to the registry, at most once per POLL_SECONDS unless `at_once`."""
        if self._released and (at_once or self._clock.now() - self._released_at >= POLL_SECONDS):
            self._registry.release_keys(self._coordinator, list(self._released))
            self._released = {}
            self._released_at = self._clock.now()
