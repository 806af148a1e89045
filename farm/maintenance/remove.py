"""One record or blob of the store, named by a person: read, or removed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.errors import BlobLostError, NotFoundError, UsageError
from farm.ledger import Ledger
from farm.store.contract import Store

LEAST_DIGITS = 4
"""Hex digits that a prefix must have: fewer are more likely a slip."""
_SHOWN = 5


@dataclass(frozen=True)
class Stored:
    """What a name stands for."""

    stage: str
    """Stage of a record; "blob" for a blob."""
    name: str
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.stage} {self.name}"


def find_stored(store: Store, beginning: str) -> Stored:
    """The one record or blob whose key or digest begins so. Raises UsageError, NotFoundError."""
    if not re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", beginning):
        raise UsageError(
            f"'{beginning}' is not the beginning of a key or digest: give {LEAST_DIGITS} hex digits or more, as "
            "farm cache ls --stage cubin shows them"
        )
    found = [Stored(each.stage, each.key, each.size_bytes) for each in store.records(beginning)]
    found += [Stored("blob", each.digest, each.size_bytes) for each in store.blobs(beginning)]
    if not found:
        raise NotFoundError(f"{store.describe()} has no key or digest that begins with {beginning}: farm cache ls")
    if len(found) > 1:
        several = ", ".join(str(each) for each in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise UsageError(f"'{beginning}' begins more than one name ({several}): give more of it")
    return found[0]


def read_blob(store: Store, beginning: str) -> bytes:
    """The one blob whose digest begins so. Raises UsageError, NotFoundError; BlobLostError where it is damaged."""
    found = find_stored(store, beginning)
    if found.stage != "blob":
        raise UsageError(f"{found} is a record, not a blob: farm inspect --json has the digests of a job's blobs")
    data = store.get(found.name)
    if data is None:
        raise BlobLostError(f"the blob {found.name} is damaged in {store.describe()}: farm cache verify --repair")
    return data


def remove_cached(store: Store, ledger: Ledger, beginning: str, *, force: bool = False) -> Stored:
    """Removes a record, whose blobs are garbage then if nothing else refers to them, or a blob.

    Raises UsageError for what jobs refer to, unless forced.
    """
    found = find_stored(store, beginning)
    if not force and (users := ledger.retention.users(found.name)):
        several = ", ".join(users[:_SHOWN]) + (f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else "")
        raise UsageError(
            f"{found} is needed by {'jobs' if len(users) > 1 else 'job'} {several}: --force removes it all the same, "
            "farm db prune forgets old jobs"
        )
    if found.stage == "blob":
        store.remove_blob(found.name, 0)
    else:
        store.remove_record(found.stage, found.name)
    return found
