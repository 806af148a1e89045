"""Blobs that are written in threads are all in the store at the end, or the store's error is raised."""

from __future__ import annotations

from threading import Event

import pytest

from farm.errors import StoreError
from farm.store.background import PUTS_AT_ONCE, BackgroundPuts
from farm.store.contract import blob_digest
from farm.store.memory import MemoryStore

BLOBS = [bytes([number]) for number in range(3 * PUTS_AT_ONCE)]


def write_all(store: MemoryStore) -> list[str]:
    with BackgroundPuts(store) as writer:
        return [writer.put(blob) for blob in BLOBS]


def test_all_blobs_are_written_at_the_end_of_the_block() -> None:
    store = MemoryStore()
    digests = write_all(store)
    assert digests == [blob_digest(blob) for blob in BLOBS]
    assert [store.get(digest) for digest in digests] == BLOBS


def test_a_slow_blob_does_not_keep_others_from_being_written() -> None:
    last_begun = Event()

    class SlowStore(MemoryStore):
        def put(self, data: bytes) -> str:
            if data == BLOBS[0]:
                assert last_begun.wait(10), "the others waited for the first"
            if data == BLOBS[-1]:
                last_begun.set()
            return super().put(data)

    write_all(SlowStore())


@pytest.mark.parametrize("failing", [0, len(BLOBS) - 1])
def test_an_error_of_the_store_is_raised(failing: int) -> None:
    class FullStore(MemoryStore):
        def put(self, data: bytes) -> str:
            if data == BLOBS[failing]:
                raise StoreError("the disk is full")
            return super().put(data)

    with pytest.raises(StoreError, match="the disk is full"):
        write_all(FullStore())
