"""The contract of stores: blobs under their digests, and small records of which blobs an action made.

Blobs are content-addressed and written once. Read bytes with `get`, without a test before it: between the test and the
read the answer may change. `holds` is for cache lookups, which need no bytes; damage that leaves the size is found when
the bytes are read.

Reading a blob refreshes its age: `get`, `put` of the same bytes, `holds`. Garbage collection removes nothing younger
than GRACE_SECONDS, and so nothing that a job has just found and will soon refer to.

Blobs that cannot be built again go into the trash first, where they are not listed; `get`, `holds` and `put` bring them
back.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Record = Mapping[str, Any]
"""Plain JSON values."""

GRACE_SECONDS = 86_400.0
"""Time since its last use for which a blob or record is not garbage, even if nothing refers to it."""
FRESH_SECONDS = 3_600.0
"""Age below which reading a blob does not refresh it, which usually saves a write."""


class RecordName(NamedTuple):
    """The name of an action record."""

    stage: str
    key: str


@dataclass(frozen=True)
class StoredBlob:
    """A blob in a listing."""

    digest: str
    size_bytes: int
    age_seconds: float
    """Time since it was written or last read, exact to FRESH_SECONDS."""


@dataclass(frozen=True)
class StoredRecord:
    """An action record in a listing."""

    stage: str
    key: str
    size_bytes: int
    age_seconds: float
    """Time since it was written."""


def blob_digest(data: bytes) -> str:
    """The digest of a blob, which is its name: SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def record_bytes(record: Record) -> bytes:
    """An action record as a file or object has it."""
    return json.dumps(record, sort_keys=True).encode()


def read_record(data: bytes | None) -> Record | None:
    """An action record from the bytes of a file or object; None if they are missing or damaged."""
    try:
        record = None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


_DIGEST = re.compile(r"[0-9a-f]{64}")
_BEGINNING = re.compile(r"[0-9a-f]{0,64}")
_MENTIONED = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_STAGE = re.compile(r"[a-z]+")


def check_name(stage: str, name: str) -> None:
    """Raises ValueError for anything but a digest, so that no name leads out of a store's root."""
    if not _DIGEST.fullmatch(name) or not _STAGE.fullmatch(stage):
        raise ValueError(f"not a name in a store: {stage}/{name}")


def check_prefix(prefix: str) -> None:
    """Raises ValueError for anything but the prefix of a digest."""
    if not _BEGINNING.fullmatch(prefix):
        raise ValueError(f"not a prefix of a name in a store: {prefix}")


def is_name(stage: str, name: str) -> bool:
    """Whether a file or an object in a store's place belongs to the store."""
    return bool(_DIGEST.fullmatch(name) and _STAGE.fullmatch(stage))


def digests_in(value: Any) -> frozenset[str]:
    """Everything that looks like a digest in a JSON value, so that rather too much is kept than too little."""
    found, left = set[str](), [value]
    while left:  # not recursive: a damaged record may be nested deeply
        match left.pop():
            case str() as text:
                found.update(_MENTIONED.findall(text))
            case Mapping() as fields:
                left += fields.values()
            case list() | tuple() as values:
                left += values
    return frozenset(found)


class Store(Protocol):
    """A store of blobs and action records.

    Raises StoreError if its place cannot be used, StoreUnavailableError if a retry may help. A missing or damaged blob
    is None: the caller makes it again, and `put` replaces a damaged one.
    """

    def get(self, digest: str) -> bytes | None:
        """The blob, checked against its digest; None if it is missing or damaged."""

    def put(self, data: bytes) -> str:
        """Writes a blob unless it exists undamaged, and returns its digest."""

    def holds(self, digest: str, size_bytes: int | None = None) -> bool:
        """Whether the blob exists, and has that size if one is given; its bytes are not read."""

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record of `key` at `stage` ("template", "cubin"); None if it is missing or damaged."""

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Writes an action record; the last writer wins."""

    def blobs(self, prefix: str = "") -> Iterator[StoredBlob]:
        """All blobs whose digests have that prefix, damaged ones too; their bytes are not read."""

    def records(self, prefix: str = "") -> Iterator[StoredRecord]:
        """All action records, of all stages, whose keys have that prefix."""

    def is_damaged(self, digest: str) -> bool:
        """Whether the blob exists and its bytes do not match its digest; this does not refresh its age."""

    def remove_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """Removes the blobs that were neither written nor read within that time, and returns them."""

    def trash_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """Moves the blobs that were neither written nor read within that time into the trash, and returns them."""

    def empty_trash(self, trashed_seconds: float) -> int:
        """Removes what has been in the trash for that time for good; returns its size in bytes."""

    def remove_damaged(self, digest: str) -> bool:
        """Removes a blob if it is still damaged; returns whether it did."""

    def remove_records(self, records: Sequence[RecordName]) -> None:
        """Removes those action records that exist."""

    def remove_leftovers(self, unused_seconds: float) -> int:
        """Removes unfinished files of killed writers that are older than that; returns their size in bytes."""

    def describe(self) -> str:
        """The store's location, for messages; without secrets."""
