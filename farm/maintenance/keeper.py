"""Keeper: what people do to look after the store and the ledger, one method for each."""

from __future__ import annotations

from collections.abc import Iterator

from farm.config.settings import Settings
from farm.errors import StoreError, UsageError
from farm.ledger import Ledger, References
from farm.maintenance.gc import Limits, Sweep, collect_garbage
from farm.maintenance.inventory import Inventory, Tell, read_inventory, tell_nobody
from farm.maintenance.remove import Stored, read_blob, remove_cached
from farm.maintenance.scrub import Damage, scrub
from farm.store.contract import Store

LEAST_PRUNE_SECONDS = 3600.0
"""A coordinator writes the last line of a job's log after its end."""


class Keeper:
    """A store and a ledger that are looked after; the part of Farm that removes things."""

    def __init__(self, settings: Settings, store: Store, ledger: Ledger) -> None:
        self._settings = settings
        self._store = store
        self._ledger = ledger

    def inventory(self, tell: Tell = tell_nobody) -> tuple[Inventory, References]:
        """All that the store holds, and what of it the ledger's jobs refer to."""
        return read_inventory(self._store, tell), self._ledger.retention.references()

    def blob(self, beginning: str) -> bytes:
        """The bytes of the one blob whose digest begins so. Raises UsageError, NotFoundError, BlobLostError."""
        return read_blob(self._store, beginning)

    def remove_cached(self, beginning: str, *, force: bool = False) -> Stored:
        """Removes one record or blob from the store. Raises UsageError, NotFoundError."""
        self._check_writable()
        return remove_cached(self._store, self._ledger, beginning, force=force)

    def collect_garbage(self, limits: Limits, *, dry_run: bool = False, tell: Tell = tell_nobody) -> Sweep:
        """Removes from the store what is past the limits and what nobody needs; may be done while jobs run."""
        if not dry_run:
            self._check_writable()
        return collect_garbage(self._store, self._ledger, limits, dry_run=dry_run, tell=tell)

    def scrub(self, *, repair: bool = False, tell: Tell = tell_nobody) -> Iterator[Damage]:
        """Reads all that the store holds again, and finds what is damaged."""
        if repair:
            self._check_writable()
        return scrub(self._store, repair=repair, tell=tell)

    def prune(self, older_than_seconds: float) -> Iterator[int]:
        """Forgets jobs that ended that long ago, some at a time; gives how many each time.

        Raises UsageError for an age that is too low to be safe.
        """
        if older_than_seconds < LEAST_PRUNE_SECONDS:
            raise UsageError("a job that ended within the last hour may still be written to: prune older ones")
        return self._ledger.retention.prune(older_than_seconds)

    def count_prunable(self, older_than_seconds: float) -> int:
        """How many jobs `prune` would forget."""
        return self._ledger.retention.count_older(older_than_seconds)

    def _check_writable(self, what: str = "remove something") -> None:
        """Before anything is read, which may take long."""
        if self._settings.read_only:
            raise StoreError(f"the store {self._store.describe()} is read-only here: unset FARM_READ_ONLY to {what}")
