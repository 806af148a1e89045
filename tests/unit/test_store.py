"""The contract of stores over those that need no service, and what is special to each."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.config.settings import load_settings
from farm.errors import StoreDeniedError, StoreError, StoreUnavailableError, UsageError
from farm.signing import MAKE_KEY, read_keyring
from farm.store import open_store
from farm.store.cache_folder import CacheFolder
from farm.store.contract import Store, blob_digest
from farm.store.disk import DiskStore
from farm.store.memory import MemoryStore
from farm.store.signed import SignedStore, was_rejected
from farm.store.tiered import TieredStore
from tests.signing_keys import key_file, new_key
from tests.store_contract import KEY, AgingStoreContract, FolderPlace, StoreContract, blob_name, folder_place


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestDisk(AgingStoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> FolderPlace:
        return folder_place(tmp_path, lambda read_only: DiskStore(tmp_path, read_only=read_only))


def test_a_blob_that_is_removed_while_its_age_is_set_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, utime = DiskStore(tmp_path).put(b"data"), os.utime
    [path] = tmp_path.rglob(digest)
    os.utime(path, (0, 0))

    def interrupted(found: Path) -> None:
        """Sets the age of a file that was found before it was removed, as the system may do."""
        monkeypatch.undo()
        descriptor = os.open(found, os.O_RDONLY)
        assert DiskStore(tmp_path).remove_blobs([digest], 3600)
        utime(descriptor)
        os.close(descriptor)

    monkeypatch.setattr(os, "utime", interrupted)
    assert DiskStore(tmp_path).put(b"data") == digest
    assert DiskStore(tmp_path).get(digest) == b"data"


class TestCacheFolder(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return CacheFolder(tmp_path, 2**30)


class TestTiered(AgingStoreContract):
    """Each process with a near store of its own, as on machines of their own."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> FolderPlace:
        near = (tmp_path / f"near{number}" for number in count())

        def opened(read_only: bool) -> Store:
            far = DiskStore(tmp_path / "far", read_only=read_only)
            return TieredStore(DiskStore(next(near)), far, read_only=read_only)

        return folder_place(tmp_path / "far", opened)


class TestSigned(AgingStoreContract):
    added_bytes = len(', "signature": {"key": "", "value": ""}') + 16 + 88

    @pytest.fixture
    def place(self, tmp_path: Path) -> FolderPlace:
        keys = read_keyring(key_file(tmp_path / "keys.pem"))

        def opened(read_only: bool) -> Store:
            return SignedStore(DiskStore(tmp_path / "store", read_only=read_only), keys)

        return folder_place(tmp_path / "store", opened)


@dataclass(frozen=True)
class Signed:
    """A store whose records are signed, and what lies below it."""

    store: SignedStore
    below: MemoryStore
    keys: Path

    def reopened(self, *keys: bytes) -> SignedStore:
        """The store with other keys."""
        path = self.keys.with_suffix(".other")
        path.write_bytes(b"".join(keys))
        return SignedStore(self.below, read_keyring(path))


@pytest.fixture
def signed(tmp_path: Path) -> Signed:
    keys, below = key_file(tmp_path / "keys.pem"), MemoryStore()
    store = SignedStore(below, read_keyring(keys))
    store.put_record("cubin", KEY, {"cubin": "aa"})
    return Signed(store, below, keys)


OTHER_KEY = "1f" * 32


def test_a_signed_record_is_valid_for_its_stage_key_and_content_only(signed: Signed) -> None:
    record = signed.below.get_record("cubin", KEY) or {}
    signed.below.put_record("cubin", OTHER_KEY, record)
    signed.below.put_record("skeleton", KEY, record)
    signed.below.put_record("template", KEY, {**record, "cubin": "bb"})
    signed.below.put_record("patch", KEY, {"cubin": "aa"})
    for stage, key in (("cubin", OTHER_KEY), ("skeleton", KEY), ("template", KEY), ("patch", KEY)):
        assert signed.store.get_record(stage, key) is None
        assert was_rejected(signed.store, stage, key)
    assert signed.store.get_record("cubin", KEY) == {"cubin": "aa"}
    assert not was_rejected(signed.store, "cubin", KEY)


@pytest.mark.parametrize(
    "signature", [None, "x", [], {}, {"key": 1, "value": 2}, {"key": "ab" * 8, "value": "AA=="}, {"value": "\u00e9"}]
)
def test_a_record_with_anything_for_a_signature_is_a_miss(signed: Signed, signature: object) -> None:
    signed.below.put_record("cubin", KEY, {"cubin": "aa", "signature": signature})
    assert signed.store.get_record("cubin", KEY) is None


def test_a_record_that_was_rejected_is_valid_once_it_is_written_again(signed: Signed) -> None:
    signed.below.put_record("cubin", KEY, {"cubin": "bb"})
    assert signed.store.get_record("cubin", KEY) is None
    signed.store.put_record("cubin", KEY, {"cubin": "cc"})
    assert signed.store.get_record("cubin", KEY) == {"cubin": "cc"}
    assert not was_rejected(signed.store, "cubin", KEY)


def test_records_of_an_old_key_stay_valid_while_its_public_key_is_kept(signed: Signed) -> None:
    new, old = new_key()[0], signed.keys.read_bytes()
    rotated = signed.reopened(new, old)
    assert rotated.get_record("cubin", KEY) == {"cubin": "aa"}
    rotated.put_record("cubin", OTHER_KEY, {})
    assert signed.reopened(new).get_record("cubin", OTHER_KEY) == {}
    assert signed.reopened(new).get_record("cubin", KEY) is None


def test_public_keys_read_records_and_write_none(signed: Signed) -> None:
    private, public = new_key()
    signed.reopened(private).put_record("cubin", KEY, {"cubin": "dd"})
    reader = signed.reopened(public)
    assert reader.get_record("cubin", KEY) == {"cubin": "dd"}
    with pytest.raises(StoreDeniedError, match="cannot sign results: its first key is public"):
        reader.put_record("cubin", KEY, {})


@dataclass(frozen=True)
class Tiers:
    near: DiskStore
    far: DiskStore
    both: TieredStore


@pytest.fixture
def tiers(tmp_path: Path) -> Tiers:
    near, far = DiskStore(tmp_path / "near"), DiskStore(tmp_path / "far")
    return Tiers(near, far, TieredStore(near, far))


def test_what_is_read_from_far_is_near_from_then_on(tiers: Tiers) -> None:
    digest = tiers.far.put(b"data")
    assert tiers.near.get(digest) is None
    assert tiers.both.get(digest) == b"data"
    assert tiers.near.get(digest) == b"data"


def test_what_is_near_is_not_read_from_far(tiers: Tiers, tmp_path: Path) -> None:
    digest = tiers.both.put(b"data")
    (tmp_path / "far" / blob_name(digest)).write_bytes(b"dada")
    assert tiers.both.get(digest) == b"data"


def test_a_blob_that_only_the_near_store_has_left_is_put_back(tiers: Tiers, tmp_path: Path) -> None:
    digest = tiers.both.put(b"data")
    far = tmp_path / "far" / blob_name(digest)
    for damage in (far.unlink, lambda: far.write_bytes(b"dat")):
        damage()
        assert not tiers.both.holds(digest, 4)
        assert tiers.both.get(digest) == b"data"
        assert tiers.far.get(digest) == b"data"


def test_a_damaged_copy_is_replaced_by_the_far_store_s(tiers: Tiers, tmp_path: Path) -> None:
    digest = tiers.both.put(b"data")
    (tmp_path / "near" / blob_name(digest)).write_bytes(b"dada")
    assert tiers.both.get(digest) == b"data"
    assert tiers.near.get(digest) == b"data"


def test_a_record_is_asked_of_the_far_store_every_time(tiers: Tiers) -> None:
    tiers.both.put_record("cubin", KEY, {"a": 1})
    tiers.far.put_record("cubin", KEY, {"a": 2})
    assert tiers.both.get_record("cubin", KEY) == {"a": 2}


class AwayStore(MemoryStore):
    """Does not answer."""

    def holds(self, digest: str, size_bytes: int | None = None) -> bool:
        raise StoreUnavailableError("away")


def test_what_is_near_can_be_read_while_the_far_store_is_away(tmp_path: Path) -> None:
    near = DiskStore(tmp_path)
    digest = near.put(b"data")
    assert TieredStore(near, AwayStore()).get(digest) == b"data"


class UnwritableStore(MemoryStore):
    """May be read only, by the rights of whoever asks."""

    def put(self, data: bytes) -> str:
        raise StoreDeniedError("may not be written")


def test_what_is_near_can_be_read_by_somebody_who_may_not_put_it_back(tmp_path: Path) -> None:
    near = DiskStore(tmp_path)
    digest = near.put(b"data")
    assert TieredStore(near, UnwritableStore()).get(digest) == b"data"


def test_a_near_store_that_cannot_be_used_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "near").write_text("")
    store = TieredStore(DiskStore(tmp_path / "near"), DiskStore(tmp_path / "far"))
    assert store.get(store.put(b"data")) == b"data"


def test_what_the_far_store_refuses_is_not_kept_near(tmp_path: Path) -> None:
    near = DiskStore(tmp_path / "near")
    store = TieredStore(near, DiskStore(tmp_path / "far", read_only=True), read_only=True)
    with pytest.raises(StoreError, match="read-only"):
        store.put(b"data")
    assert near.get(blob_digest(b"data")) is None


def test_a_cache_stays_below_its_limit_and_forgets_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, 100_000)
    digests = [cache.put(bytes([i]) * 10_000) for i in range(9)]
    for age, digest in enumerate(reversed(digests)):
        os.utime(tmp_path / blob_name(digest), (1000 - age, 1000 - age))
    assert cache.get(digests[0]) is not None  # the oldest no longer
    for i in range(9, 14):
        cache.put(bytes([i]) * 10_000)
        assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 100_000
    assert cache.get(digests[0]) is not None
    assert cache.get(digests[1]) is None


def test_a_cache_that_another_process_filled_is_trimmed_at_the_first_write(tmp_path: Path) -> None:
    for i in range(20):
        DiskStore(tmp_path).put(bytes([i]) * 10_000)
    CacheFolder(tmp_path, 100_000).put(b"one more")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 100_000


def test_what_is_larger_than_a_cache_does_not_empty_it(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, 1000)
    kept = cache.put(b"small")
    assert cache.get(cache.put(bytes(1001))) is None
    assert cache.get(kept) == b"small"


def test_files_of_others_in_a_cache_s_folder_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    own = tmp_path / "thesis" / "chapter.tex"
    own.parent.mkdir()
    own.write_bytes(bytes(100_000))
    os.utime(own, (1, 1))
    cache = CacheFolder(tmp_path, 100_000)
    kept = [cache.put(bytes([i]) * 40_000) for i in range(3)][1:]
    assert own.exists()
    assert all(cache.get(digest) for digest in kept)


def test_the_remains_of_a_killed_writer_leave_a_cache_too(tmp_path: Path) -> None:
    left = tmp_path / "v1" / "cas" / "aa" / ".new-1"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(100_000))
    os.utime(left, (1, 1))
    CacheFolder(tmp_path, 100_000).put(b"x")
    assert not left.exists()


def test_a_write_that_breaks_off_is_an_error_in_words_and_leaves_nothing(tmp_path: Path) -> None:
    # The limit on a file's size stands for a full disk: part of the blob is written, then the system refuses.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"File too large\): make room"):
            DiskStore(tmp_path).put(bytes(3 * 2**20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_killed_writers_and_collectors_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    digest = DiskStore(tmp_path).put(b"data")
    folder = (tmp_path / blob_name(digest)).parent
    for name, age_seconds in ((".new-old", 7200), (".gone-old", 7200), (".new-now", 0)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, 2 * (time.time() - age_seconds,))
    assert DiskStore(tmp_path).remove_leftovers(3600) == 8
    assert {path.name for path in folder.iterdir()} == {digest, ".new-now"}
    with pytest.raises(StoreError, match="read-only"):
        DiskStore(tmp_path, read_only=True).remove_leftovers(0)


def test_what_is_removed_from_the_far_store_is_not_put_back_by_this_machine(tiers: Tiers) -> None:
    digest = tiers.both.put(b"data")
    assert tiers.both.remove_blobs([digest], 0)
    assert tiers.both.get(digest) is None


def test_files_are_as_readable_as_the_user_makes_files(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    DiskStore(tmp_path / "store").put(b"data")
    modes = {path.stat().st_mode for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == {(tmp_path / "usual").stat().st_mode}


def test_a_store_whose_root_is_a_file_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(StoreError, match="FARM_STORE"):
        DiskStore(tmp_path / "root").put(b"data")


def test_a_store_that_cannot_be_listed_is_an_error_in_words(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / ("a" * 300))
    with pytest.raises(StoreError, match="File name too long"):
        list(store.records())
    with pytest.raises(StoreError, match="File name too long"):
        list(store.blobs())


def test_the_configured_store_is_the_one_that_opens(tmp_path: Path) -> None:
    settings = load_settings({"FARM_STORE": f"file://{tmp_path}/here", "FARM_READ_ONLY": "1"})
    assert open_store(settings).describe() == f"folder {tmp_path}/here"
    with pytest.raises(StoreError, match="read-only"):
        open_store(settings).put(b"x")


def test_a_bucket_has_this_machine_s_cache_in_front_unless_its_size_is_0(tmp_path: Path) -> None:
    environment = {
        "FARM_STORE": "s3://bucket/a/prefix/",
        "FARM_S3_ENDPOINT": "http://host:9000",
        "FARM_CACHE_DIR": f"{tmp_path}/cache",
        "FARM_SIGNING_KEYS": str(key_file(tmp_path / "keys.pem")),
    }
    bucket = "s3://bucket/a/prefix at http://host:9000"
    assert open_store(load_settings(environment)).describe() == f"{bucket}, cached in folder {tmp_path}/cache"
    assert open_store(load_settings(environment | {"FARM_CACHE_SIZE": "0"})).describe() == bucket


def test_a_store_in_s3_needs_signing_keys_and_one_in_a_folder_takes_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs signing keys") as caught:
        open_store(load_settings({"FARM_STORE": "s3://bucket/a"}))
    assert MAKE_KEY in str(caught.value)
    assert "FARM_SIGNING_KEYS" in str(caught.value)
    environment = {"FARM_STORE": f"file://{tmp_path}", "FARM_SIGNING_KEYS": str(key_file(tmp_path / "keys.pem"))}
    assert isinstance(open_store(load_settings(environment)), SignedStore)


def test_a_wrong_clock_of_this_machine_makes_no_blob_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = DiskStore(tmp_path).put(b"data")
    for days in (2, -2):
        wrong = time.time() + days * 86_400
        monkeypatch.setattr("farm.store.disk.time", SimpleNamespace(time=lambda wrong=wrong: wrong))
        store = DiskStore(tmp_path)
        [blob] = store.blobs()
        assert abs(blob.age_seconds) < 60
        assert not store.trash_blobs([digest], 3600)
        assert not store.remove_blobs([digest], 3600)
