"""A store with another, faster one in front."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from farm.errors import StoreError, StoreUnavailableError
from farm.store.contract import Record, Store, StoredBlob, StoredRecord


class TieredStore:
    """What is near is a copy: only what lies in the far store counts as stored.

    Records are always asked of the far store, since they may change. What goes wrong in the near store is no error:
    it costs a read from the far one.
    """

    def __init__(self, near: Store, far: Store, *, read_only: bool = False) -> None:
        self._near = near
        self._far = far
        self._read_only = read_only

    def get(self, digest: str) -> bytes | None:
        """The blob, from the near store if that has it.

        A blob that only the near store still has is put back into the far one: other machines would not find it.
        """
        data = None
        with suppress(StoreError):
            data = self._near.get(digest)
        if data is None:
            data = self._far.get(digest)
            if data is not None:
                self._keep(data)
        elif not self._read_only:
            with suppress(StoreUnavailableError):  # right bytes are right, also while nobody else can be asked
                if not self._far.holds(digest):
                    self._far.put(data)
        return data

    def put(self, data: bytes) -> str:
        """Writes a blob once and gives its digest; replaces one that is damaged."""
        digest = self._far.put(data)
        self._keep(data)
        return digest

    def holds(self, digest: str) -> bool:
        """Whether the far store has a blob, right or damaged."""
        return self._far.holds(digest)

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record; None where it is missing or damaged."""
        return self._far.get_record(stage, key)

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Writes an action record; the last one wins."""
        self._far.put_record(stage, key, record)

    def blobs(self, beginning: str = "") -> Iterator[StoredBlob]:
        """Every blob of the far store whose digest begins so."""
        return self._far.blobs(beginning)

    def records(self, beginning: str = "") -> Iterator[StoredRecord]:
        """Every action record whose key begins so, of all stages."""
        return self._far.records(beginning)

    def is_damaged(self, digest: str) -> bool:
        """Whether the far store's blob is: a damaged copy is replaced when it is read."""
        return self._far.is_damaged(digest)

    def remove_blob(self, digest: str, unused_seconds: float) -> bool:
        """Removes a blob unless it was written or asked for within that time; the copy on this machine too."""
        removed = self._far.remove_blob(digest, unused_seconds)
        if removed:
            with suppress(StoreError):
                self._near.remove_blob(digest, 0)
        return removed

    def remove_damaged(self, digest: str) -> bool:
        """Removes the far store's blob if it is damaged; whether it did."""
        return self._far.remove_damaged(digest)

    def remove_record(self, stage: str, key: str) -> None:
        """Removes an action record, if it is there."""
        self._far.remove_record(stage, key)

    def remove_leftovers(self, unused_seconds: float) -> int:
        """Removes what killed writers left in the far store; the near one forgets by itself."""
        return self._far.remove_leftovers(unused_seconds)

    def describe(self) -> str:
        """Where it is, for people."""
        return f"{self._far.describe()}, cached in {self._near.describe()}"

    def _keep(self, data: bytes) -> None:
        with suppress(StoreError):
            self._near.put(data)
