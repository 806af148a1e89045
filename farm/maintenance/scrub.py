"""Scrubbing: reads a whole store again and finds damaged records and blobs, and records without a valid signature."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from farm.maintenance.inventory import READERS, Tell, read_entries, tell_nobody
from farm.store.contract import RecordName, Store, StoredBlob

_BATCH = 64
"""Blobs checked together; each may have a hundred megabytes."""


@dataclass(frozen=True)
class Damage:
    """A blob that differs from its digest, an unreadable record, or one without a valid signature."""

    stage: str
    """"blob", or the stage of a record."""
    name: str
    size_bytes: int
    removed: bool
    unsigned: bool = False
    """Whether it is a readable record whose signature is missing or invalid."""


def scrub(store: Store, *, repair: bool = False, tell: Tell = tell_nobody) -> Iterator[Damage]:
    """Yields every damaged record and blob; `repair` removes them, and later jobs build them again.

    A damaged blob counts as missing in any case. Blobs that cannot be built, such as weights, are restored by a new
    `farm compile`.
    """
    for count, entry in enumerate(read_entries(store), 1):
        tell("records", count)
        stored = entry.stored
        # A record that is gone by now was removed by somebody else.
        unusable = entry.record is None or entry.unsigned
        if unusable and any(each.stage == stored.stage for each in store.records(stored.key)):
            if repair:
                store.remove_records([RecordName(stored.stage, stored.key)])
            yield Damage(stored.stage, stored.key, stored.size_bytes, repair, entry.unsigned)
    count = 0
    listed = store.blobs()
    with ThreadPoolExecutor(READERS) as pool:
        while batch := list(islice(listed, _BATCH)):

            def check(blob: StoredBlob) -> bool:
                return store.is_damaged(blob.digest)

            for blob, damaged in zip(batch, pool.map(check, batch), strict=True):
                count += 1
                tell("blobs", count)
                if damaged:
                    removed = repair and store.remove_damaged(blob.digest)
                    yield Damage("blob", blob.digest, blob.size_bytes, removed)
