"""The lease of a coordinator: held while it works, expired once it dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Self

from farm.errors import LeaseLostError, LedgerAwayError
from farm.executors.contract import WorkerState
from farm.ledger import Ledger

LEASE_SECONDS = 30.0
BEAT_SECONDS = 5.0
"""Interval between two extensions of the lease."""


def tell_nobody(_reason: str) -> None:
    """Default callback: ignore warnings."""


class Lease:
    """Extends the lease on all held jobs from its own thread, for as long as the `with` block lasts.

    Each beat also records the states that `workers` returns. A beat that fails is retried by the next; `tell` is
    called with the reason at the first of consecutive failures.
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
        """Failure of the last beat."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def check(self) -> None:
        """Raises LeaseLostError when beats have failed for the length of the lease, so that others may claim the jobs.

        An unreachable database does not raise: its users wait and retry. If only this machine is cut off, another
        coordinator may claim the jobs and build the same cubins; the ledger then rejects this coordinator's results.
        """
        error = self._error
        lost = time.monotonic() - self._extended_at > self._lease_seconds
        if error is not None and lost and not isinstance(error, LedgerAwayError):
            raise LeaseLostError(
                f"lease lost: it could not be extended for {self._lease_seconds:g} s ({_described(error)}). "
                "Fix the cause and restart the coordinator."
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
            except Exception as error:  # noqa: BLE001 - the lease would expire unnoticed if this thread ended
                is_first, self._error = self._error is None, error
                if is_first:
                    with suppress(Exception):  # nor may it end because nobody can be told, as after a hang-up
                        self._tell(f"the lease could not be extended; retrying: {_described(error)}")

    def __enter__(self) -> Self:
        self._extended_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
