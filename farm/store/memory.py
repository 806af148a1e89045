"""A store in this process's memory: for tests and examples."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from farm.store.contract import Record, StoredBlob, StoredRecord, blob_digest, check_beginning, check_name


class MemoryStore:
    """Holds everything until the process ends."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._records: dict[tuple[str, str], str] = {}
        self._used: dict[str, float] = {}
        """When each blob was last written or asked for."""
        self._recorded: dict[tuple[str, str], float] = {}

    def get(self, digest: str) -> bytes | None:
        """The blob, checked against its digest."""
        check_name("blob", digest)
        data = self._blobs.get(digest)
        if data is None or blob_digest(data) != digest:
            return None
        self._used[digest] = time.time()
        return data

    def put(self, data: bytes) -> str:
        """Keeps a blob and gives its digest."""
        digest = blob_digest(data)
        self._blobs[digest] = data
        self._used[digest] = time.time()
        return digest

    def holds(self, digest: str) -> bool:
        """Whether there is a blob."""
        check_name("blob", digest)
        if digest in self._blobs:
            self._used[digest] = time.time()
        return digest in self._blobs

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record of `key` at `stage`."""
        check_name(stage, key)
        record = self._records.get((stage, key))
        return None if record is None else dict(json.loads(record))

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Keeps an action record; the last one wins."""
        check_name(stage, key)
        self._records[stage, key] = json.dumps(record)  # so that what comes back is what a file would give
        self._recorded[stage, key] = time.time()

    def blobs(self, beginning: str = "") -> Iterator[StoredBlob]:
        """Every blob whose digest begins so."""
        check_beginning(beginning)
        now = time.time()
        for digest, data in sorted(self._blobs.items()):
            if digest.startswith(beginning):
                yield StoredBlob(digest, len(data), now - self._used[digest])

    def records(self, beginning: str = "") -> Iterator[StoredRecord]:
        """Every action record whose key begins so, of all stages."""
        check_beginning(beginning)
        now = time.time()
        for (stage, key), text in sorted(self._records.items()):
            if key.startswith(beginning):
                yield StoredRecord(stage, key, len(text), now - self._recorded[stage, key])

    def is_damaged(self, digest: str) -> bool:
        """Whether there is a blob with other bytes than its digest says."""
        check_name("blob", digest)
        return digest in self._blobs and blob_digest(self._blobs[digest]) != digest

    def remove_blob(self, digest: str, unused_seconds: float) -> bool:
        """Forgets a blob unless it was written or asked for within that time; whether it did."""
        check_name("blob", digest)
        if digest not in self._blobs or time.time() - self._used[digest] < unused_seconds:
            return False
        del self._blobs[digest], self._used[digest]
        return True

    def remove_damaged(self, digest: str) -> bool:
        """Forgets a blob if it is damaged; whether it did."""
        return self.is_damaged(digest) and self.remove_blob(digest, 0)

    def remove_record(self, stage: str, key: str) -> None:
        """Forgets an action record, if it is there."""
        check_name(stage, key)
        self._records.pop((stage, key), None)
        self._recorded.pop((stage, key), None)

    def remove_leftovers(self, unused_seconds: float) -> int:  # noqa: ARG002 - Store has it
        """Nothing can be left here."""
        return 0

    def describe(self) -> str:
        """Where it is, for people."""
        return "memory"
