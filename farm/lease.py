"""Keeps a coordinator's claims alive while it works, and lets them end when it dies."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from farm.errors import LedgerError
from farm.ledger import Ledger

LEASE_SECONDS = 30.0
BEAT_SECONDS = 5.0


class Lease:
    """Extends all claims of a coordinator from a thread of its own, for as long as the `with` block lasts."""

    def __init__(self, ledger: Ledger, coordinator: str, *, beat_seconds: float = BEAT_SECONDS) -> None:
        self._ledger = ledger
        self._coordinator = coordinator
        self._beat_seconds = beat_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def _beat(self) -> None:
        while not self._over.wait(self._beat_seconds):
            with suppress(LedgerError):  # the next beat tries again; the lease outlasts several
                self._ledger.extend_lease(self._coordinator, LEASE_SECONDS)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
