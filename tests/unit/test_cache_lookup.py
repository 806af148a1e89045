"""Cache lookups ask the store for presence; the bytes of a cubin are checked when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.errors import BlobLostError
from farm.store.disk import DiskStore
from farm.store.memory import MemoryStore
from farm.worker.cache_lookup import CUBIN_STAGE, find_cubin, read_cubin
from farm.worker.messages import CubinFacts
from tests.samples import LAUNCH
from tests.store_contract import blob_name

KEY = "5a" * 32


class UnreadStore(MemoryStore):
    """Counts the blobs that are read."""

    reads = 0

    def get(self, digest: str) -> bytes | None:
        self.reads += 1
        return super().get(digest)


def test_a_lookup_reads_no_cubin() -> None:
    store = UnreadStore()
    facts = CubinFacts(store.put(b"cubin"), 5, "ef" * 32, "ef" * 32, 11, 97, 25, 0, 0.1, 0.2, LAUNCH)
    store.put_record(CUBIN_STAGE, KEY, facts.to_json())
    found = find_cubin(store, KEY)
    assert found is not None
    assert found.made == facts
    assert store.reads == 0


def test_a_damaged_cubin_is_removed_when_it_is_read(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    digest = store.put(b"cubin")
    (tmp_path / blob_name(digest)).write_bytes(b"cubim")
    with pytest.raises(BlobLostError, match=r"lost the cubin conv1: run farm compile again$"):
        read_cubin(store, digest, "conv1")
    assert not store.holds(digest)


def test_a_damaged_cubin_that_may_not_be_removed_is_rebuilt_by_recaching(tmp_path: Path) -> None:
    digest = DiskStore(tmp_path).put(b"cubin")
    (tmp_path / blob_name(digest)).write_bytes(b"cubim")
    with pytest.raises(BlobLostError, match="with FARM_RECACHE=1"):
        read_cubin(DiskStore(tmp_path, read_only=True), digest, "conv1")
