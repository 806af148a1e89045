"""Scheduled maintenance: applies the retention and size limits of the settings once an hour."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from farm.config.settings import Settings
from farm.errors import BusyError, FarmError, LedgerAwayError
from farm.ledger import Ledger
from farm.maintenance.gc import COLLECTION, Limits, collect_garbage
from farm.scheduler.progress import Progress
from farm.store.contract import Store

EVERY_SECONDS = 3600.0
LOOK_SECONDS = 30.0
"""Interval at which a coordinator checks whether maintenance is due; another one may have died."""

LEDGER, STORE = "ledger retention", COLLECTION
"""Names under which the ledger records the last run."""


class ScheduledMaintenance:
    """Runs `farm db prune` and `farm cache gc` in a thread inside a `with` block.

    One of several coordinators runs it each hour. Nothing runs without limits; a read-only store is skipped with a
    warning.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        ledger: Ledger,
        progress: Progress,
        *,
        every_seconds: float = EVERY_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._settings = settings
        self._store = store
        self._ledger = ledger
        self._progress = progress
        self._every_seconds = every_seconds
        self._look_seconds = look_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._duties: dict[str, Callable[[], None]] = {}
        """Pruning comes first: it frees what old jobs referred to."""
        if settings.ledger_age_seconds is not None:
            self._duties[LEDGER] = self._prune_jobs
        if settings.store_bytes is not None or settings.store_age_seconds is not None:
            self._duties[STORE] = self._collect_garbage

    def _prune_jobs(self) -> None:
        pruned = 0
        for some in self._ledger.retention.prune(self._settings.ledger_age_seconds or 0.0):
            pruned += some
            self._go_on()
        self._progress.jobs_pruned(pruned)

    def _collect_garbage(self) -> None:
        limits = Limits(self._settings.store_age_seconds, self._settings.store_bytes)
        self._progress.garbage_collected(collect_garbage(self._store, self._ledger, limits, tell=self._go_on))

    def _go_on(self, *_counted: object) -> None:
        """Called after each step; stops the run when the block ends, and the next run continues."""
        if self._over.is_set():
            raise _Over

    def _run(self) -> None:
        if self._settings.read_only and STORE in self._duties:
            del self._duties[STORE]
            self._progress.maintenance_failed("the store is read-only here: its limits are not applied")
        while not self._over.is_set():
            for name, duty in self._duties.items():
                self._take_turn(name, duty)
            self._over.wait(self._look_seconds)

    def _take_turn(self, name: str, duty: Callable[[], None]) -> None:
        try:
            if self._ledger.retention.take_turn(name, self._every_seconds):
                duty()
        except LedgerAwayError:
            pass  # running jobs wait for the ledger too, and report it
        except BusyError:
            pass  # the other run reports
        except _Over:
            pass
        except Exception as error:  # noqa: BLE001 - nothing else applies the limits if this thread ends
            reason = str(error) if isinstance(error, FarmError) else f"{type(error).__name__}: {error}"
            self._progress.maintenance_failed(f"{name} failed: {reason}. The next run is in an hour.")

    def __enter__(self) -> Self:
        if self._duties:
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        if self._duties:
            self._thread.join()


class _Over(Exception):
    """The `with` block ends."""
