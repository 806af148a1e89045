"""A store whose action records are signed: one that was replaced, or copied from another key, is a cache miss."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence

from farm.errors import StoreDeniedError, UsageError
from farm.signing import Keyring, Signature
from farm.store.contract import Record, RecordName, Store, StoredBlob, StoredRecord

RECORD_TYPE = "application/vnd.sparse-compile-farm.action-record+json"
SIGNATURE = "signature"
"""Field of a stored record."""


class SignedStore:
    """Signs the records that it writes, over stage, key and content, and reads no record without a valid signature.

    Blobs need no signature: they have their digests for names.
    """

    def __init__(self, store: Store, keys: Keyring) -> None:
        self.unchecked = store
        """The store below, which gives records without a check."""
        self.keys = keys
        self.rejected: set[tuple[str, str]] = set()
        """Stage and key of the records read without a valid signature and not written since."""

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record; None if it is missing, damaged or without a valid signature."""
        stored = self.unchecked.get_record(stage, key)
        if stored is None:
            return None
        record = {name: value for name, value in stored.items() if name != SIGNATURE}
        signature = _signature_of(stored)
        if signature is None or not self.keys.accepts(RECORD_TYPE, _payload(stage, key, record), signature):
            self.rejected.add((stage, key))
            return None
        return record

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Signs and writes an action record. Raises StoreDeniedError without a private key."""
        try:
            signature = self.keys.sign(RECORD_TYPE, _payload(stage, key, record))
        except UsageError as error:
            raise StoreDeniedError(str(error)) from None
        shown = {"key": signature.key_id, "value": b64encode(signature.data).decode()}
        self.unchecked.put_record(stage, key, {**record, SIGNATURE: shown})
        self.rejected.discard((stage, key))

    def get(self, digest: str) -> bytes | None:
        """See Store, as for the methods below."""
        return self.unchecked.get(digest)

    def put(self, data: bytes) -> str:
        """See Store."""
        return self.unchecked.put(data)

    def holds(self, digest: str, size_bytes: int | None = None) -> bool:
        """See Store."""
        return self.unchecked.holds(digest, size_bytes)

    def blobs(self, prefix: str = "") -> Iterator[StoredBlob]:
        """See Store."""
        return self.unchecked.blobs(prefix)

    def records(self, prefix: str = "") -> Iterator[StoredRecord]:
        """See Store."""
        return self.unchecked.records(prefix)

    def is_damaged(self, digest: str) -> bool:
        """See Store."""
        return self.unchecked.is_damaged(digest)

    def remove_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """See Store."""
        return self.unchecked.remove_blobs(digests, unused_seconds)

    def trash_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """See Store."""
        return self.unchecked.trash_blobs(digests, unused_seconds)

    def empty_trash(self, trashed_seconds: float) -> int:
        """See Store."""
        return self.unchecked.empty_trash(trashed_seconds)

    def remove_damaged(self, digest: str) -> bool:
        """See Store."""
        return self.unchecked.remove_damaged(digest)

    def remove_records(self, records: Sequence[RecordName]) -> None:
        """See Store."""
        self.unchecked.remove_records(records)

    def remove_leftovers(self, unused_seconds: float) -> int:
        """See Store."""
        return self.unchecked.remove_leftovers(unused_seconds)

    def describe(self) -> str:
        """The store's location, for messages."""
        return self.unchecked.describe()


def was_rejected(store: Store, stage: str, key: str) -> bool:
    """Whether a record was a miss because it has no valid signature, and was not written since."""
    return isinstance(store, SignedStore) and (stage, key) in store.rejected


def unchecked_record(store: Store, stage: str, key: str) -> Record | None:
    """An action record whether its signature is valid or not: for maintenance, which must not rely on its content."""
    return (store.unchecked if isinstance(store, SignedStore) else store).get_record(stage, key)


def check_signs(store: Store) -> None:
    """Raises UsageError if the store takes signed records and this machine has public keys only."""
    if isinstance(store, SignedStore):
        store.keys.private()


def _payload(stage: str, key: str, record: Record) -> bytes:
    return json.dumps([stage, key, record], sort_keys=True, separators=(",", ":")).encode()


def _signature_of(stored: Record) -> Signature | None:
    try:
        found = stored[SIGNATURE]
        return Signature(str(found["key"]), b64decode(found["value"], validate=True))
    except (KeyError, TypeError, ValueError):
        return None
