"""Keeps a coordinator's claims alive while it works, and lets them end when it dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Self

from farm.errors import LeaseLostError, LedgerAwayError
from farm.executors.contract import WorkerState
from farm.ledger import Ledger

LEASE_SECONDS = 30.0
BEAT_SECONDS = 5.0


def tell_nobody(_reason: str) -> None:
    """For who does not want to hear."""


class Lease:
    """Extends all claims of a coordinator from a thread of its own, for as long as the `with` block lasts.

    Each beat tells the ledger too what `workers` says of the coordinator's workers. Whatever goes wrong with one, the
    next tries again; `tell` hears of it, in words, when it begins.
    """

    def __init__(
        self,
        ledger: Ledger,
        coordinator: str,
        workers: Callable[[], Sequence[WorkerState]] = lambda: (),
        *,
        tell: Callable[[str], None] = tell_nobody,
        lease_seconds: float = LEASE_SECONDS,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._ledger = ledger
        self._coordinator = coordinator
        self._workers = workers
        self._tell = tell
        self._lease_seconds = lease_seconds
        self._beat_seconds = beat_seconds
        self._extended_at = time.monotonic()
        self._error: Exception | None = None
        """Why the last beat failed."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def check(self) -> None:
        """Raises LeaseLostError once others may take the jobs: beats have failed for as long as the lease lasts.

        A database that is away is waited for by whoever needs it: nobody can take the jobs from it meanwhile.
        """
        error = self._error
        lost = time.monotonic() - self._extended_at > self._lease_seconds
        if error is not None and lost and not isinstance(error, LedgerAwayError):
            raise LeaseLostError(
                f"the lease of its jobs ended: for {self._lease_seconds:g} s it could not be extended "
                f"({_described(error)}); start it again once that is mended"
            ) from error

    def _beat(self) -> None:
        while not self._over.wait(self._beat_seconds):
            try:
                now = time.monotonic()
                self._ledger.extend_lease(self._coordinator, self._lease_seconds)
                self._extended_at = now
                self._ledger.coordinators.beat(
                    self._coordinator, self._lease_seconds, [asdict(worker) for worker in self._workers()]
                )
                self._error = None
            except Exception as error:  # noqa: BLE001 - without this thread the claims would end, and nobody would know
                if self._error is None:
                    self._tell(f"the lease could not be extended, and is tried again: {_described(error)}")
                self._error = error

    def __enter__(self) -> Self:
        self._extended_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
