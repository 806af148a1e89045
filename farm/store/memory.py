"""A store in the process's memory, for tests and examples."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

from farm.store.contract import Record, RecordName, StoredBlob, StoredRecord, blob_digest, check_name, check_prefix


class MemoryStore:
    """A store in memory, which lives as long as the process."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._records: dict[tuple[str, str], str] = {}
        self._used: dict[str, float] = {}
        """Time at which each blob was last written or read."""
        self._recorded: dict[tuple[str, str], float] = {}
        self._trash: dict[str, tuple[bytes, float]] = {}
        """Blobs in the trash, and the times at which they went there."""

    def get(self, digest: str) -> bytes | None:
        """The blob, checked against its digest; None if it is missing or damaged."""
        data = self._found(digest)
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
        data = self._found(digest)
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

    def remove_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """Removes the blobs that were neither written nor read within that time, and returns them."""
        for digest in digests:
            check_name("blob", digest)
        now = time.time()
        old = frozenset(each for each in digests if each in self._blobs and now - self._used[each] >= unused_seconds)
        for digest in old:
            del self._blobs[digest], self._used[digest]
        return old

    def trash_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """Moves the blobs that were neither written nor read within that time into the trash, and returns them."""
        kept = {digest: self._blobs[digest] for digest in digests if digest in self._blobs}
        trashed = self.remove_blobs(digests, unused_seconds)
        self._trash.update((digest, (kept[digest], time.time())) for digest in trashed)
        return trashed

    def empty_trash(self, trashed_seconds: float) -> int:
        """Removes what has been in the trash for that time for good; returns its size in bytes."""
        old = [digest for digest, (_, at) in self._trash.items() if time.time() - at >= trashed_seconds]
        return sum(len(self._trash.pop(digest)[0]) for digest in old)

    def remove_damaged(self, digest: str) -> bool:
        """Removes a blob if it is damaged; returns whether it did."""
        return self.is_damaged(digest) and bool(self.remove_blobs([digest], 0))

    def remove_records(self, records: Sequence[RecordName]) -> None:
        """Removes those action records that exist."""
        for name in records:
            check_name(*name)
            self._records.pop(name, None)
            self._recorded.pop(name, None)

    def remove_leftovers(self, unused_seconds: float) -> int:  # noqa: ARG002 - Store has it
        """Removes nothing: memory has no unfinished files."""
        return 0

    def describe(self) -> str:
        """The store's location, for messages."""
        return "memory"

    def _found(self, digest: str) -> bytes | None:
        """A blob, brought back from the trash if it is there."""
        check_name("blob", digest)
        if digest not in self._blobs and digest in self._trash:
            self._blobs[digest], _ = self._trash.pop(digest)
        return self._blobs.get(digest)
