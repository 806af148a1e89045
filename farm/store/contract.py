"""What a store is: bytes under their own digest, and small records that say which bytes an action made.

Blobs are content-addressed and written once. Both kinds are asked with `get`, never with a test for existence:
between such a test and the read the answer may change. `holds` is for one caller only, who reads nothing after it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Protocol

Record = Mapping[str, Any]
"""Plain JSON values."""


def blob_digest(data: bytes) -> str:
    """The name of a blob: SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


_DIGEST = re.compile(r"[0-9a-f]{64}")
_STAGE = re.compile(r"[a-z]+")


def check_name(stage: str, name: str) -> None:
    """Refuses anything but a digest, so that no name leads out of a store's root. Raises ValueError."""
    if not _DIGEST.fullmatch(name) or not _STAGE.fullmatch(stage):
        raise ValueError(f"not a name in a store: {stage}/{name}")


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

    def describe(self) -> str:
        """Where it is, for people; without secrets."""
