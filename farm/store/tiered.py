"""A store with a faster one in front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from farm.errors import StoreDeniedError, StoreError, StoreUnavailableError
from farm.store.contract import Record, RecordName, Store, StoredBlob, StoredRecord


class TieredStore:
    """A far store with a near one in front, which holds copies: only the far store's contents count as stored.

    Records are always read from the far store, since they may change. A failure of the near store is not an error; it
    costs a read from the far one.
    """

    def __init__(self, near: Store, far: Store, *, read_only: bool = False) -> None:
        self._near = near
        self._far = far
        self._read_only = read_only

    def get(self, digest: str) -> bytes | None:
        """The blob, from the near store if possible.

        A blob that the far store has lost or truncated is put back into it, so that other machines find it.
        """
        data = None
        with suppress(StoreError):
            data = self._near.get(digest)
        if data is None:
            data = self._far.get(digest)
            if data is not None:
                self._keep(data)
        elif not self._read_only:
            # An undamaged copy is valid even while the far store is unreachable, or may not be written.
            with suppress(StoreUnavailableError, StoreDeniedError):
                if not self._far.holds(digest, len(data)):
                    self._far.put(data)
        return data

    def put(self, data: bytes) -> str:
        """Writes a blob unless it exists undamaged, and returns its digest."""
        digest = self._far.put(data)
        self._keep(data)
        return digest

    def holds(self, digest: str, size_bytes: int | None = None) -> bool:
        """Whether the far store has the blob, and of that size if one is given."""
        return self._far.holds(digest, size_bytes)

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record; None if it is missing or damaged."""
        return self._far.get_record(stage, key)

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Writes an action record; the last writer wins."""
        self._far.put_record(stage, key, record)

    def blobs(self, prefix: str = "") -> Iterator[StoredBlob]:
        """Every blob of the far store whose digest begins so."""
        return self._far.blobs(prefix)

    def records(self, prefix: str = "") -> Iterator[StoredRecord]:
        """All action records, of all stages, whose keys have that prefix."""
        return self._far.records(prefix)

    def is_damaged(self, digest: str) -> bool:
        """Whether the far store's blob is damaged. A damaged copy in the near store is replaced when it is read."""
        return self._far.is_damaged(digest)

    def remove_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """Removes the blobs that were neither written nor read within that time, here too, and returns them."""
        removed = self._far.remove_blobs(digests, unused_seconds)
        with suppress(StoreError):
            self._near.remove_blobs(sorted(removed), 0)
        return removed

    def trash_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """Moves the far store's unused blobs into its trash, removes their copies here, and returns them."""
        trashed = self._far.trash_blobs(digests, unused_seconds)
        with suppress(StoreError):
            self._near.remove_blobs(sorted(trashed), 0)
        return trashed

    def empty_trash(self, trashed_seconds: float) -> int:
        """Removes what has been in the far store's trash for that time; returns its size in bytes."""
        return self._far.empty_trash(trashed_seconds)

    def remove_damaged(self, digest: str) -> bool:
        """Removes the far store's blob if it is damaged; returns whether it did."""
        return self._far.remove_damaged(digest)

    def remove_records(self, records: Sequence[RecordName]) -> None:
        """Removes those action records that exist."""
        self._far.remove_records(records)

    def remove_leftovers(self, unused_seconds: float) -> int:
        """Removes unfinished files of the far store; the near one trims itself."""
        return self._far.remove_leftovers(unused_seconds)

    def describe(self) -> str:
        """The store's location, for messages."""
        return f"{self._far.describe()}, cached in {self._near.describe()}"

    def _keep(self, data: bytes) -> None:
        with suppress(StoreError):
            self._near.put(data)
