"""A store in this process's memory: for tests and examples."""

from __future__ import annotations

import json

from farm.store.contract import Record, blob_digest, check_name


class MemoryStore:
    """Holds everything until the process ends."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._records: dict[tuple[str, str], str] = {}

    def get(self, digest: str) -> bytes | None:
        """The blob, checked against its digest."""
        check_name("blob", digest)
        data = self._blobs.get(digest)
        return data if data is not None and blob_digest(data) == digest else None

    def put(self, data: bytes) -> str:
        """Keeps a blob and gives its digest."""
        digest = blob_digest(data)
        self._blobs[digest] = data
        return digest

    def holds(self, digest: str) -> bool:
        """Whether there is a blob."""
        check_name("blob", digest)
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

    def describe(self) -> str:
        """Where it is, for people."""
        return "memory"
