"""Garbage collection: removes old or surplus records, and blobs that nothing refers to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from farm.errors import UsageError
from farm.ledger import Ledger, References
from farm.maintenance.exclusive import Exclusive
from farm.maintenance.inventory import Entry, Inventory, Tell, read_inventory, tell_nobody
from farm.store.contract import FRESH_SECONDS, GRACE_SECONDS, RecordName, Store

COLLECTION = "store garbage collection"
"""Name of its lease."""
MIN_GRACE_SECONDS = 2 * FRESH_SECONDS
"""Shortest safe grace period: a job may just have treated a blob of this age as fresh."""


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

    records: tuple[Entry, ...]
    blobs: tuple[str, ...]
    bytes_before: int
    bytes_freed: int
    kept_for_jobs: int
    """Records past the limits kept because jobs in the ledger refer to them."""
    kept_young: int
    """Records and blobs past the limits kept because they are younger than the grace period."""
    unsigned: int
    """Records of the store, before the collection, whose signatures are missing or invalid."""


def choose_garbage(inventory: Inventory, references: References, limits: Limits) -> Sweep:
    """Chooses the garbage of an inventory, without removing it.

    Raises UsageError for a grace period that is too short to be safe.
    """
    if limits.grace_seconds < MIN_GRACE_SECONDS:
        raise UsageError(
            f"grace period of {limits.grace_seconds:g} s is too short: running jobs rely on blobs of that age. "
            f"Give at least {MIN_GRACE_SECONDS / 3600:g} h."
        )
    entries = sorted(inventory.entries, key=inventory.age_seconds, reverse=True)
    users = _count_users(entries)
    free = {digest for digest in inventory.blobs if digest not in users}
    gone: list[Entry] = []
    kept_for_jobs = kept_young = 0
    doomed = [each for each in free if _may_go(inventory, references, limits, each)]
    left_bytes = inventory.total_bytes - sum(inventory.blobs[each].size_bytes for each in doomed)
    for entry in entries:
        if not _is_past(inventory, entry, limits, left_bytes):
            continue
        if entry.stored.key in references.keys or entry.refers_to & references.blobs:
            kept_for_jobs += 1
            continue
        if inventory.age_seconds(entry) < limits.grace_seconds:
            kept_young += 1
            continue
        gone.append(entry)
        left_bytes -= entry.stored.size_bytes
        for digest in entry.refers_to & inventory.blobs.keys():
            users[digest] -= 1
            if not users[digest] and _may_go(inventory, references, limits, digest):
                doomed.append(digest)
                left_bytes -= inventory.blobs[digest].size_bytes
    kept_young += sum(
        each not in references.blobs and inventory.blobs[each].age_seconds < limits.grace_seconds for each in free
    )
    return Sweep(
        records=tuple(gone),
        blobs=tuple(doomed),
        bytes_before=inventory.total_bytes,
        bytes_freed=inventory.total_bytes - left_bytes,
        kept_for_jobs=kept_for_jobs,
        kept_young=kept_young,
        unsigned=sum(entry.unsigned for entry in entries),
    )


def _count_users(entries: Iterable[Entry]) -> dict[str, int]:
    """Number of records that refer to each blob."""
    users: dict[str, int] = {}
    for entry in entries:
        for digest in entry.refers_to:
            users[digest] = users.get(digest, 0) + 1
    return users


def _is_past(inventory: Inventory, entry: Entry, limits: Limits, left_bytes: int) -> bool:
    if limits.namespace is not None and entry.namespace != limits.namespace:
        return False
    old = limits.older_than_seconds is not None and inventory.age_seconds(entry) >= limits.older_than_seconds
    return old or (limits.size_bytes is not None and left_bytes > limits.size_bytes)


def _may_go(inventory: Inventory, references: References, limits: Limits, digest: str) -> bool:
    """Whether a blob without records may go: no job refers to it and its grace period is over."""
    return digest not in references.blobs and inventory.blobs[digest].age_seconds >= limits.grace_seconds


def collect_garbage(
    store: Store, ledger: Ledger, limits: Limits, *, dry_run: bool = False, tell: Tell = tell_nobody
) -> Sweep:
    """Collects garbage; safe while jobs run, also on other machines (DECISIONS.md says why).

    Records are removed before their blobs, so that no lookup finds a record without blobs. References of jobs are
    read again before blobs are removed, and each blob's age is checked again at its removal. Raises UsageError,
    BusyError while another run collects, LeaseLostError if another one began because this one stood still.
    """
    if dry_run:
        return choose_garbage(read_inventory(store, tell), ledger.retention.references(), limits)
    with Exclusive(ledger, COLLECTION) as exclusive:

        def step(what: str, count: int) -> None:
            exclusive.check()
            tell(what, count)

        return _collect(store, ledger, limits, step)


def _collect(store: Store, ledger: Ledger, limits: Limits, tell: Tell) -> Sweep:
    inventory = read_inventory(store, tell)
    chosen = choose_garbage(inventory, ledger.retention.references(), limits)
    for count, entry in enumerate(chosen.records):
        tell("records removed", count)
        store.remove_records([RecordName(entry.stored.stage, entry.stored.key)])
    referred = ledger.retention.references().blobs
    removed: list[str] = []
    for digest in chosen.blobs:
        tell("blobs removed", len(removed))
        if digest not in referred and store.remove_blobs([digest], limits.grace_seconds):
            removed.append(digest)
    leftover_bytes = store.remove_leftovers(limits.grace_seconds)
    spared = set(chosen.blobs) - set(removed)
    spared_bytes = sum(inventory.blobs[digest].size_bytes for digest in spared)
    # Others have been removed by somebody else.
    asked_for = [digest for digest in spared if any(store.blobs(digest))]
    return Sweep(
        records=chosen.records,
        blobs=tuple(removed),
        bytes_before=chosen.bytes_before,
        bytes_freed=chosen.bytes_freed - spared_bytes + leftover_bytes,
        kept_for_jobs=chosen.kept_for_jobs,
        kept_young=chosen.kept_young + len(asked_for),
        unsigned=chosen.unsigned,
    )
