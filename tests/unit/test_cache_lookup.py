"""Cache lookups ask the store for presence; the bytes of a cubin are checked when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.errors import BlobLostError
from farm.store.disk import DiskStore
from farm.store.memory import MemoryStore
from farm.worker.cache_lookup import CUBIN_STAGE, PATCH_STAGE, RefusableStage, find_cubin, read_cubin
from farm.worker.direct import SKELETON_STAGE
from farm.worker.messages import CubinFacts
from farm.worker.patch import PatchBuilds
from tests.samples import LAUNCH, fixed_toolchain
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


@pytest.mark.parametrize("record", [{}, {"cubin": "no digest"}, {"cubin": None}, {"cubin": {"refused": "here"}}])
def test_a_skeleton_s_record_that_cannot_be_read_is_a_miss(record: dict[str, Any]) -> None:
    store = MemoryStore()
    store.put_record(SKELETON_STAGE, KEY, record)
    assert RefusableStage(SKELETON_STAGE, store, store.put_record, recache=False).find(KEY) is None


@pytest.mark.parametrize("facts", [{}, {"registers": None}, {"registers": float("inf")}, {"seconds": "long"}])
def test_a_patch_template_s_record_that_cannot_be_read_is_a_miss(facts: dict[str, Any]) -> None:
    store = MemoryStore()
    whole = {"registers": 32, "spill_bytes": 0, "seconds": 1.0} if facts else {}
    store.put_record(PATCH_STAGE, KEY, {"cubin": store.put(b"cubin"), **whole, **facts})
    builds = PatchBuilds(store, fixed_toolchain(), store.put_record, recache=False)
    assert builds._found(KEY, "sm_90") is None
