"""Keeps a coordinator's claims alive while it works, and lets them end when it dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Self

from farm.errors import LedgerError
from farm.executors.contract import WorkerState
from farm.ledger import Ledger

LEASE_SECONDS = 30.0
BEAT_SECONDS = 5.0


class Lease:
    """Extends all claims of a coordinator from a thread of its own, for as long as the `with` block lasts.

    Each beat tells the ledger too what `workers` says of the coordinator's workers.
    """

    def __init__(
        self,
        ledger: Ledger,
        coordinator: str,
        workers: Callable[[], Sequence[WorkerState]] = lambda: (),
        *,
        lease_seconds: float = LEASE_SECONDS,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._ledger = ledger
        self._coordinator = coordinator
        self._workers = workers
        self._lease_seconds = lease_seconds
        self._beat_seconds = beat_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def _beat(self) -> None:
        while not self._over.wait(self._beat_seconds):
            with suppress(LedgerError):  # the next beat tries again; the lease outlasts several
                self._ledger.extend_lease(self._coordinator, self._lease_seconds)
                workers = [asdict(worker) for worker in self._workers()]
                self._ledger.coordinators.beat(self._coordinator, self._lease_seconds, workers)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
