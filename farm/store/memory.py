"""A store in this process's memory: for tests and examples."""

from __future__ import annotations

from farm.store.contract import Record, blob_digest, check_name


class MemoryStore:
    """Holds everything until the process ends."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._records: dict[tuple[str, str], Record] = {}

    def get(self, digest: str) -> bytes | None:
        check_name("blob", digest)
        data = self._blobs.get(digest)
        return data if data is not None and blob_digest(data) == digest else None

    def put(self, data: bytes) -> str:
        digest = blob_digest(data)
        self._blobs[digest] = data
        return digest

    def get_record(self, stage: str, key: str) -> Record | None:
        check_name(stage, key)
        return self._records.get((stage, key))

    def put_record(self, stage: str, key: str, record: Record) -> None:
        check_name(stage, key)
        self._records[stage, key] = dict(record)

    def describe(self) -> str:
        return "memory"
