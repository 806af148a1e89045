"""Inventory of a store: its blobs, and its records with the blobs they refer to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from farm.store.contract import Record, Store, StoredBlob, StoredRecord, digests_in
from farm.store.signed import unchecked_record

READERS = 8
"""Threads that read records; they mostly wait for S3."""
_BATCH = 1024

Tell = Callable[[str, int], None]
"""Receives progress: what is counted, and the count so far."""


def tell_nobody(what: str, count: int) -> None:
    """Ignores progress."""


@dataclass(frozen=True)
class Entry:
    """A record and its references."""

    stored: StoredRecord
    record: Record | None
    """None for a damaged record."""
    refers_to: frozenset[str]
    """Digests of blobs, which may be missing."""
    unsigned: bool = False
    """Whether its signature is missing or invalid: no build uses it."""

    @property
    def namespace(self) -> str:
        """Namespace of the job that made it; empty if unknown."""
        return str((self.record or {}).get("namespace", ""))


@dataclass(frozen=True)
class Inventory:
    """Contents of a store, not a snapshot: others may write while it is read."""

    entries: tuple[Entry, ...]
    blobs: Mapping[str, StoredBlob]

    def age_seconds(self, entry: Entry) -> float:
        """Time since it was made or last used, exact to an hour; using a record refreshes its blobs."""
        found = (self.blobs[digest] for digest in entry.refers_to if digest in self.blobs)
        return min((entry.stored.age_seconds, *(blob.age_seconds for blob in found)))

    def size_bytes(self, entry: Entry) -> int:
        """Size of the record and its blobs."""
        found = (self.blobs[digest] for digest in entry.refers_to if digest in self.blobs)
        return entry.stored.size_bytes + sum(blob.size_bytes for blob in found)

    @property
    def total_bytes(self) -> int:
        """Size of the whole store, each blob counted once."""
        return sum(entry.stored.size_bytes for entry in self.entries) + sum(
            blob.size_bytes for blob in self.blobs.values()
        )


def read_inventory(store: Store, tell: Tell = tell_nobody) -> Inventory:
    """Reads every record, then lists the blobs, so that blobs of the records read are among them."""
    entries = []
    for entry in read_entries(store):
        entries.append(entry)
        tell("records", len(entries))
    blobs = {}
    for blob in store.blobs():
        blobs[blob.digest] = blob
        tell("blobs", len(blobs))
    return Inventory(tuple(entries), blobs)


def read_entries(store: Store) -> Iterator[Entry]:
    """Every record, read in parallel."""

    def read(stored: StoredRecord) -> Entry:
        record = store.get_record(stored.stage, stored.key)
        if record is not None:
            return Entry(stored, record, digests_in(record))
        # Collected as any other: with the wrong keys, garbage collection must not empty the store.
        record = unchecked_record(store, stored.stage, stored.key)
        return Entry(stored, record, digests_in(record), unsigned=record is not None)

    listed = store.records()
    with ThreadPoolExecutor(READERS) as pool:
        while batch := list(islice(listed, _BATCH)):
            yield from pool.map(read, batch)
