"""Reads or removes one record or blob, named by a prefix."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from farm.errors import BlobLostError, NotFoundError, UsageError
from farm.ledger import Ledger
from farm.store.contract import RecordName, Store

MIN_DIGITS = 4
"""Fewest hex digits of a prefix; fewer are likely a typing error."""
_SHOWN = 5


@dataclass(frozen=True)
class Stored:
    """A record or blob in the store."""

    stage: str
    """Stage of the record, or "blob"."""
    name: str
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.stage} {self.name}"


def find_stored(store: Store, prefix: str) -> Stored:
    """The record or blob with a unique prefix of its key or digest. Raises UsageError, NotFoundError."""
    if not re.fullmatch(rf"[0-9a-f]{{{MIN_DIGITS},64}}", prefix):
        raise UsageError(
            f"'{prefix}' is not a prefix of a key or digest: give {MIN_DIGITS} hex digits or more, as "
            "farm cache ls --stage cubin shows them"
        )
    found = [Stored(each.stage, each.key, each.size_bytes) for each in store.records(prefix)]
    found += [Stored("blob", each.digest, each.size_bytes) for each in store.blobs(prefix)]
    if not found:
        raise NotFoundError(f"{store.describe()} has no key or digest that begins with {prefix}: farm cache ls")
    if len(found) > 1:
        several = ", ".join(str(each) for each in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise UsageError(f"'{prefix}' begins more than one name ({several}): give more digits")
    return found[0]


def read_blob(store: Store, prefix: str) -> bytes:
    """Bytes of the blob with a unique prefix. Raises UsageError, NotFoundError; BlobLostError if it is damaged."""
    found = find_stored(store, prefix)
    if found.stage != "blob":
        raise UsageError(f"{found} is a record, not a blob: farm inspect --json has the digests of a job's blobs")
    data = store.get(found.name)
    if data is None:
        raise BlobLostError(f"the blob {found.name} is damaged in {store.describe()}: farm cache verify --repair")
    return data


def remove_cached(store: Store, ledger: Ledger, prefix: str, *, force: bool = False) -> Stored:
    """Removes a record or a blob; a record's blobs become garbage unless referred to elsewhere.

    A blob that no job has built goes into the trash, since nothing may be able to build it again. Raises UsageError
    if jobs refer to it, unless forced.
    """
    found = find_stored(store, prefix)
    if not force and (users := ledger.retention.users(found.name)):
        several = ", ".join(users[:_SHOWN]) + (f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else "")
        raise UsageError(
            f"{found} is needed by {'jobs' if len(users) > 1 else 'job'} {several}: --force removes it all the same, "
            "farm db prune forgets old jobs"
        )
    if found.stage == "blob":
        remove = store.remove_blobs if ledger.retention.made(found.name) else store.trash_blobs
        remove([found.name], -math.inf)  # also what is from the future, by a clock that differs
    else:
        store.remove_records([RecordName(found.stage, found.name)])
    return found
