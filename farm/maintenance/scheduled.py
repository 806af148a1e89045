"""Upkeep: the limits of store and ledger that the settings name, applied hour by hour without anybody's command."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from farm.config.settings import Settings
from farm.errors import FarmError, LedgerAwayError
from farm.ledger import Ledger
from farm.maintenance.gc import Limits, collect_garbage
from farm.scheduler.progress import Progress
from farm.store.contract import Store

EVERY_SECONDS = 3600.0
LOOK_SECONDS = 30.0
"""How often a coordinator asks whether it is time: another one may have died."""

LEDGER, STORE = "upkeep of the ledger", "upkeep of the store"
"""Under these names the ledger keeps when each was done last."""


class Upkeep:
    """Does what `farm db prune` and `farm cache gc` do, in a thread, for as long as the `with` block lasts.

    Of several coordinators one does it each hour. Without limits nothing runs; a store that is read-only here is left
    to others, and that is said.
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
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._duties: dict[str, Callable[[], None]] = {}
        """The ledger's first: what old jobs needed may go then."""
        if settings.ledger_age_seconds is not None:
            self._duties[LEDGER] = self._forget_jobs
        if settings.store_bytes is not None or settings.store_age_seconds is not None:
            self._duties[STORE] = self._collect_garbage

    def _forget_jobs(self) -> None:
        forgotten = 0
        for some in self._ledger.retention.prune(self._settings.ledger_age_seconds or 0.0):
            forgotten += some
            self._go_on()
        self._progress.jobs_forgotten(forgotten)

    def _collect_garbage(self) -> None:
        limits = Limits(self._settings.store_age_seconds, self._settings.store_bytes)
        self._progress.garbage_collected(collect_garbage(self._store, self._ledger, limits, tell=self._go_on))

    def _go_on(self, *_counted: object) -> None:
        """Asked after each step: what is done stays done, what is left is done next time."""
        if self._over.is_set():
            raise _Over

    def _run(self) -> None:
        if self._settings.read_only and STORE in self._duties:
            del self._duties[STORE]
            self._progress.upkeep_failed("the limits of the store are not applied: it is read-only here")
        while not self._over.is_set():
            for name, duty in self._duties.items():
                self._take_turn(name, duty)
            self._over.wait(self._look_seconds)

    def _take_turn(self, name: str, duty: Callable[[], None]) -> None:
        try:
            if self._ledger.retention.take_turn(name, self._every_seconds):
                duty()
        except LedgerAwayError:
            pass  # jobs wait for it too, and say so
        except FarmError as error:
            self._progress.upkeep_failed(f"{name} failed, the next try is in an hour: {error}")
        except _Over:
            pass

    def __enter__(self) -> Self:
        if self._duties:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._duties:
            self._thread.join()


class _Over(Exception):
    """The `with` block is being left."""
