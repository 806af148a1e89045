"""What a store is: bytes under their own digest, and small records that say which bytes an action made.

Blobs are content-addressed and written once. Both kinds are asked with `get`, never with a test for existence:
between such a test and the read the answer may change. `holds` is for one caller only, who reads nothing after it.

What asks for a blob makes it young again: `get`, `put` of the same bytes, `holds`. Whoever collects garbage removes
nothing that is younger than GRACE_SECONDS, and so nothing that a job has just found and will soon refer to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Record = Mapping[str, Any]
"""Plain JSON values."""

GRACE_SECONDS = 86_400.0
"""How long what was written or asked for is not garbage, even if nothing refers to it yet."""
FRESH_SECONDS = 3_600.0
"""A blob younger than this is not made younger when it is asked for: most often that saves a write."""


@dataclass(frozen=True)
class StoredBlob:
    """A blob in a list of them."""

    digest: str
    size_bytes: int
    age_seconds: float
    """Since it was written or, within FRESH_SECONDS, last asked for."""


@dataclass(frozen=True)
class StoredRecord:
    """An action record in a list of them."""

    stage: str
    key: str
    size_bytes: int
    age_seconds: float
    """Since it was written."""


def blob_digest(data: bytes) -> str:
    """The name of a blob: SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


_DIGEST = re.compile(r"[0-9a-f]{64}")
_BEGINNING = re.compile(r"[0-9a-f]{0,64}")
_MENTIONED = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_STAGE = re.compile(r"[a-z]+")


def check_name(stage: str, name: str) -> None:
    """Refuses anything but a digest, so that no name leads out of a store's root. Raises ValueError."""
    if not _DIGEST.fullmatch(name) or not _STAGE.fullmatch(stage):
        raise ValueError(f"not a name in a store: {stage}/{name}")


def check_beginning(beginning: str) -> None:
    """Refuses anything but the beginning of a digest. Raises ValueError."""
    if not _BEGINNING.fullmatch(beginning):
        raise ValueError(f"not the beginning of a name in a store: {beginning}")


def is_name(stage: str, name: str) -> bool:
    """Whether something that lies in a store's place is the store's own."""
    return bool(_DIGEST.fullmatch(name) and _STAGE.fullmatch(stage))


def digests_in(value: Any) -> frozenset[str]:
    """Whatever looks like a digest in a JSON value: rather too much is kept than too little."""
    match value:
        case str():
            return frozenset(_MENTIONED.findall(value))
        case Mapping():
            return frozenset().union(*(digests_in(each) for each in value.values()))
        case list() | tuple():
            return frozenset().union(*(digests_in(each) for each in value))
        case _:
            return frozenset()


class Store(Protocol):
    """Raises StoreError where the place behind it cannot be used, StoreUnavailableError where waiting may help.

    A blob that is missing or damaged is None: whoever asks makes it again, and `put` replaces what is damaged.
    """

    def get(self, digest: str) -> bytes | None:
        """The blob, checked against its digest."""

    def put(self, data: bytes) -> str:
        """Writes a blob once and gives its digest; replaces one that is damaged."""

    def holds(self, digest: str) -> bool:
        """Whether there is a blob, right or damaged: for a cache in front, which has the bytes already."""

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record of `key` at `stage` ("template", "cubin")."""

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Writes an action record; the last one wins."""

    def blobs(self, beginning: str = "") -> Iterator[StoredBlob]:
        """Every blob whose digest begins so, right or damaged; nothing is read."""

    def records(self, beginning: str = "") -> Iterator[StoredRecord]:
        """Every action record whose key begins so, of all stages."""

    def is_damaged(self, digest: str) -> bool:
        """Whether there is a blob with other bytes than its digest says; it grows no younger by this."""

    def remove_blob(self, digest: str, unused_seconds: float) -> bool:
        """Removes a blob unless it was written or asked for within that time; whether it did."""

    def remove_damaged(self, digest: str) -> bool:
        """Removes a blob if it is damaged, and not if somebody has repaired it by now; whether it did."""

    def remove_record(self, stage: str, key: str) -> None:
        """Removes an action record, if it is there."""

    def remove_leftovers(self, unused_seconds: float) -> int:
        """Removes what killed writers left half written, that long ago; how many bytes that were."""

    def describe(self) -> str:
        """Where it is, for people; without secrets."""
