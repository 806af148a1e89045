"""What a store holds: its records with the blobs that each refers to, and the blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from farm.store.contract import Record, Store, StoredBlob, StoredRecord, digests_in

READERS = 8
"""Threads that read records: most of the time they wait for S3."""
_BATCH = 1024

Tell = Callable[[str, int], None]
"""Hears what is counted now, and how many there are so far."""


def tell_nobody(what: str, count: int) -> None:
    """For who wants to hear nothing."""


@dataclass(frozen=True)
class Entry:
    """A record and what it refers to."""

    stored: StoredRecord
    record: Record | None
    """None: damaged."""
    refers_to: frozenset[str]
    """Digests, of blobs that may be there."""

    @property
    def namespace(self) -> str:
        """Whose job made it; empty where that is not known."""
        return str((self.record or {}).get("namespace", ""))


@dataclass(frozen=True)
class Inventory:
    """All of a store, as it was while it was read: others may write meanwhile."""

    entries: tuple[Entry, ...]
    blobs: Mapping[str, StoredBlob]

    def age_seconds(self, entry: Entry) -> float:
        """Since it was made or, within an hour, last used: what uses a record asks for its blobs."""
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
    """Reads every record. Blobs are listed last, so that those of the records are among them."""
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
    """Every record, several at a time."""

    def read(stored: StoredRecord) -> Entry:
        record = store.get_record(stored.stage, stored.key)
        return Entry(stored, record, digests_in(record))

    listed = store.records()
    with ThreadPoolExecutor(READERS) as pool:
        while batch := list(islice(listed, _BATCH)):
            yield from pool.map(read, batch)
