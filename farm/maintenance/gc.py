"""Garbage collection: removes old or surplus records, and blobs that nothing refers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, TypeVar

from farm.errors import UsageError
from farm.ledger import Ledger
from farm.maintenance.exclusive import Exclusive
from farm.maintenance.inventory import AgedRecord, Inventory, Tell, open_inventory, tell_nobody
from farm.store.contract import FRESH_SECONDS, GRACE_SECONDS, RecordName, Store

COLLECTION = "store garbage collection"
"""Name of its lease."""
LISTED = 10_000
"""Names of records and of blobs that a result holds at most."""
MIN_GRACE_SECONDS = 2 * FRESH_SECONDS
"""Shortest safe grace period: a job may just have treated a blob of this age as fresh."""

TRASH_SECONDS = 7 * 86_400.0
"""Time for which what cannot be built again stays in the trash."""
_Name = TypeVar("_Name")


@dataclass(frozen=True)
class Limits:
    """Limits of a store."""

    older_than_seconds: float | None = None
    """Removes records neither made nor used for this long; None: no limit."""
    size_bytes: int | None = None
    """Removes least recently used records until the store fits; None: no limit."""
    namespace: str | None = None
    """Removes only records made by jobs of this namespace; None: any."""
    grace_seconds: float = GRACE_SECONDS
    """Keeps everything made or used within this time, whatever the limits."""


@dataclass(frozen=True)
class Sweep:
    """Result of a collection: removed records and blobs, and those kept."""

    record_count: int
    blob_count: int
    records: tuple[RecordName, ...]
    """The first LISTED of the removed records."""
    blobs: tuple[str, ...]
    """Digests of the first LISTED of the removed blobs."""
    bytes_before: int
    bytes_freed: int
    """Freed bytes, including those moved to the trash."""
    bytes_trashed: int
    """Weights and other blobs that cannot be built again: they come back if they are used within TRASH_SECONDS."""
    kept_for_jobs: int
    """Records past the limits kept because jobs in the ledger refer to them."""
    kept_young: int
    """Records and blobs past the limits kept because they are younger than the grace period."""
    unsigned: int
    """Records of the store, before the collection, whose signatures are missing or invalid."""


class _Tally(Generic[_Name]):
    """Removed records or blobs: their number, their size and the first names."""

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self.first: list[_Name] = []

    def add(self, sizes: Mapping[_Name, int]) -> None:
        """Adds names with their sizes in bytes."""
        self.count += len(sizes)
        self.bytes += sum(sizes.values())
        self.first += islice(sizes, LISTED - len(self.first))


def collect_garbage(
    store: Store, ledger: Ledger, limits: Limits, *, dry_run: bool = False, tell: Tell = tell_nobody
) -> Sweep:
    """Collects garbage; safe while jobs run, also on other machines (DECISIONS.md says why).

    Records are removed before their blobs, so that no lookup finds a record without blobs. References of jobs are
    read again before blobs are removed, and each blob's age is checked again at its removal. Raises UsageError for a
    grace period that is too short to be safe, BusyError while another run collects, LeaseLostError if another one
    began because this one stood still.
    """
    if limits.grace_seconds < MIN_GRACE_SECONDS:
        raise UsageError(
            f"grace period of {limits.grace_seconds:g} s is too short: running jobs rely on blobs of that age. "
            f"Give at least {MIN_GRACE_SECONDS / 3600:g} h."
        )
    if dry_run:
        with open_inventory(store, ledger.retention.references(), tell) as inventory:
            return _choose(inventory, limits)
    with Exclusive(ledger, COLLECTION) as exclusive:

        def step(what: str, count: int) -> None:
            exclusive.check()
            tell(what, count)

        with open_inventory(store, ledger.retention.references(), step) as inventory:
            chosen = _choose(inventory, limits)
            return _remove(store, ledger, inventory, chosen, limits.grace_seconds, step)


def _choose(inventory: Inventory, limits: Limits) -> Sweep:
    """Chooses the garbage of an inventory, and returns what its removal would do."""
    before = inventory.total_bytes
    kept_for_jobs, kept_young = 0, inventory.count_young_blobs(limits.grace_seconds)
    freed = inventory.condemn_free_blobs(limits.grace_seconds)
    for record in inventory.records_by_age():
        surplus = limits.size_bytes is not None and before - freed > limits.size_bytes
        if not surplus and not _is_old(record, limits):
            break  # the others are younger
        if limits.namespace not in (None, record.namespace):
            continue
        if record.needed:
            kept_for_jobs += 1
        elif record.unused_seconds < limits.grace_seconds:
            kept_young += 1
        else:
            freed += inventory.condemn(record, limits.grace_seconds)
    records, blobs, trashed_bytes = _Tally[RecordName](), _Tally[str](), 0
    for some in inventory.garbage_records():
        records.add(some)
    for rebuilt in (True, False):
        for several in inventory.garbage_blobs(rebuilt=rebuilt):
            blobs.add(several)
            trashed_bytes += 0 if rebuilt else sum(several.values())
    return Sweep(
        record_count=records.count,
        blob_count=blobs.count,
        records=tuple(records.first),
        blobs=tuple(blobs.first),
        bytes_before=before,
        bytes_freed=freed,
        bytes_trashed=trashed_bytes,
        kept_for_jobs=kept_for_jobs,
        kept_young=kept_young,
        unsigned=inventory.unsigned,
    )


def _is_old(record: AgedRecord, limits: Limits) -> bool:
    return limits.older_than_seconds is not None and record.unused_seconds >= limits.older_than_seconds


def _remove(
    store: Store, ledger: Ledger, inventory: Inventory, chosen: Sweep, grace_seconds: float, tell: Tell
) -> Sweep:
    """Removes the garbage of an inventory."""
    records, blobs = _Tally[RecordName](), _Tally[str]()
    for some in inventory.garbage_records():
        tell("records removed", records.count)
        store.remove_records(list(some))
        records.add(some)
    inventory.need(ledger.retention.references(), tell)
    used_since = trashed_bytes = 0
    for rebuilt, remove in ((True, store.remove_blobs), (False, store.trash_blobs)):
        for several in inventory.garbage_blobs(rebuilt=rebuilt):
            tell("blobs removed", blobs.count)
            removed = remove(list(several), grace_seconds)
            sizes = {digest: several[digest] for digest in several if digest in removed}
            blobs.add(sizes)
            trashed_bytes += 0 if rebuilt else sum(sizes.values())
            # Others have been removed by somebody else.
            used_since += sum(any(store.blobs(digest)) for digest in several.keys() - removed)
    tell("blobs removed", blobs.count)
    store.empty_trash(TRASH_SECONDS)
    leftover_bytes = store.remove_leftovers(grace_seconds)
    return replace(
        chosen,
        record_count=records.count,
        blob_count=blobs.count,
        records=tuple(records.first),
        blobs=tuple(blobs.first),
        bytes_freed=records.bytes + blobs.bytes + leftover_bytes,
        bytes_trashed=trashed_bytes,
        kept_young=chosen.kept_young + used_since,
    )
