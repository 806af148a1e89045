"""A store in the process's memory, for tests and examples."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from farm.store.contract import Record, StoredBlob, StoredRecord, blob_digest, check_name, check_prefix


class MemoryStore:
    """A store in memory, which lives as long as the process."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._records: dict[tuple[str, str], str] = {}
        self._used: dict[str, float] = {}
        """Time at which each blob was last written or read."""
        self._recorded: dict[tuple[str, str], float] = {}

    def get(self, digest: str) -> bytes | None:
        """The blob, checked against its digest; None if it is missing or damaged."""
        check_name("blob", digest)
        data = self._blobs.get(digest)
        if data is None or blob_digest(data) != digest:
            return None
        self._used[digest] = time.time()
        return data

    def put(self, data: bytes) -> str:
        """Stores a blob and returns its digest."""
        digest = blob_digest(data)
        self._blobs[digest] = data
        self._used[digest] = time.time()
        return digest

    def holds(self, digest: str, size_bytes: int | None = None) -> bool:
        """Whether the blob exists, and has that size if one is given."""
        check_name("blob", digest)
        data = self._blobs.get(digest)
        if data is None or size_bytes not in (None, len(data)):
            return False
        self._used[digest] = time.time()
        return True

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record of `key` at `stage`; None if it is missing."""
        check_name(stage, key)
        record = self._records.get((stage, key))
        return None if record is None else dict(json.loads(record))

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Stores an action record; the last writer wins."""
        check_name(stage, key)
        self._records[stage, key] = json.dumps(record)  # as JSON, so that the values read back are those of a file
        self._recorded[stage, key] = time.time()

    def blobs(self, prefix: str = "") -> Iterator[StoredBlob]:
        """All blobs whose digests have that prefix."""
        check_prefix(prefix)
        now = time.time()
        for digest, data in sorted(self._blobs.items()):
            if digest.startswith(prefix):
                yield StoredBlob(digest, len(data), now - self._used[digest])

    def records(self, prefix: str = "") -> Iterator[StoredRecord]:
        """All action records, of all stages, whose keys have that prefix."""
        check_prefix(prefix)
        now = time.time()
        for (stage, key), text in sorted(self._records.items()):
            if key.startswith(prefix):
                yield StoredRecord(stage, key, len(text), now - self._recorded[stage, key])

    def is_damaged(self, digest: str) -> bool:
        """Whether the blob exists and its bytes do not match its digest."""
        check_name("blob", digest)
        return digest in self._blobs and blob_digest(self._blobs[digest]) != digest

    def remove_blob(self, digest: str, unused_seconds: float) -> bool:
        """Removes a blob unless it was written or read within that time; returns whether it did."""
        check_name("blob", digest)
        if digest not in self._blobs or time.time() - self._used[digest] < unused_seconds:
            return False
        del self._blobs[digest], self._used[digest]
        return True

    def remove_damaged(self, digest: str) -> bool:
        """Removes a blob if it is damaged; returns whether it did."""
        return self.is_damaged(digest) and self.remove_blob(digest, 0)

    def remove_record(self, stage: str, key: str) -> None:
        """Removes an action record if it exists."""
        check_name(stage, key)
        self._records.pop((stage, key), None)
        self._recorded.pop((stage, key), None)

    def remove_leftovers(self, unused_seconds: float) -> int:  # noqa: ARG002 - Store has it
        """Removes nothing: memory has no unfinished files."""
        return 0

    def describe(self) -> str:
        """The store's location, for messages."""
        return "memory"
