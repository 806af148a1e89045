"""The contract of stores: one suite, run over each kind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import pytest

from farm.errors import StoreError
from farm.store.contract import RecordName, Store, blob_digest

KEY = "0f" * 32
RECORD = f"v1/ac/cubin/{KEY[:2]}/{KEY}.json"
WRITERS = 8


def blob_name(digest: str) -> str:
    return f"v1/cas/{digest[:2]}/{digest}"


class StoreContract:
    """A class of tests for each kind of store derives from this one and has the fixture `store`."""

    added_bytes = 0
    """Size of what the store adds to a record."""

    def test_a_blob_comes_back_under_its_digest(self, store: Store) -> None:
        for data in (b"", b"cubin", bytes(range(256)) * 5000):
            assert store.put(data) == blob_digest(data)
            assert store.put(data) == blob_digest(data)
            assert store.get(blob_digest(data)) == data

    def test_what_was_never_put_is_none(self, store: Store) -> None:
        assert store.get("ab" * 32) is None
        assert store.get_record("cubin", "ab" * 32) is None
        assert not store.holds("ab" * 32)

    def test_a_store_holds_what_was_put_in_its_own_size_only(self, store: Store) -> None:
        digest = store.put(b"held")
        assert store.holds(digest)
        assert store.holds(digest, 4)
        assert not store.holds(digest, 3)
        assert not store.holds("ab" * 32, 0)

    def test_a_record_comes_back_and_the_last_one_wins(self, store: Store) -> None:
        store.put_record("cubin", KEY, {"a": 1, "b": [1, 2], "c": {"d": None}})
        assert store.get_record("cubin", KEY) == {"a": 1, "b": [1, 2], "c": {"d": None}}
        store.put_record("cubin", KEY, {"a": (2, 3)})
        assert store.get_record("cubin", KEY) == {"a": [2, 3]}
        assert store.get_record("template", KEY) is None

    @pytest.mark.parametrize("name", ["", "ab", "../" * 21 + "a", "G" * 64, "A" * 64, KEY + "/", f"{KEY}\n"])
    def test_a_name_that_is_no_digest_is_refused(self, store: Store, name: str) -> None:
        for call in (
            lambda: store.get(name),
            lambda: store.holds(name),
            lambda: store.get_record("cubin", name),
            lambda: store.put_record("cubin", name, {}),
            lambda: store.is_damaged(name),
            lambda: store.remove_blobs([name], 0),
            lambda: store.trash_blobs([name], 0),
            lambda: store.remove_damaged(name),
            lambda: store.remove_records([RecordName("cubin", name)]),
        ):
            with pytest.raises(ValueError, match="not a name"):
                call()

    @pytest.mark.parametrize("stage", ["", "../x", "Cubin", "a/b", "a\n"])
    def test_a_stage_that_is_no_word_is_refused(self, store: Store, stage: str) -> None:
        with pytest.raises(ValueError, match="not a name"):
            store.put_record(stage, KEY, {})
        with pytest.raises(ValueError, match="not a name"):
            store.remove_records([RecordName(stage, KEY)])

    @pytest.mark.parametrize("beginning", ["..", "/", "AB", "a" * 65, "*", "a\n"])
    def test_a_beginning_that_no_digest_has_is_refused(self, store: Store, beginning: str) -> None:
        for listed in (store.blobs, store.records):
            with pytest.raises(ValueError, match="not a prefix of a name"):
                list(listed(beginning))

    def test_what_was_put_is_listed_with_its_size_and_age(self, store: Store) -> None:
        assert list(store.blobs()) == list(store.records()) == []
        sizes = {store.put(bytes([i]) * i): i for i in range(5)}
        for stage in ("template", "cubin"):
            store.put_record(stage, KEY, {"a": stage})
        assert {blob.digest: blob.size_bytes for blob in store.blobs()} == sizes
        assert {(record.stage, record.key) for record in store.records()} == {("cubin", KEY), ("template", KEY)}
        sizes_of_records = {record.size_bytes - self.added_bytes for record in store.records()}
        assert sizes_of_records == {len('{"a": "cubin"}'), len('{"a": "template"}')}
        for found in (*store.blobs(), *store.records()):
            assert -60 < found.age_seconds < 60

    def test_a_list_can_be_narrowed_by_the_beginning_of_a_name(self, store: Store) -> None:
        digests = [store.put(bytes([i])) for i in range(20)]
        for key in (KEY, "1f" * 32):
            store.put_record("cubin", key, {})
        for length in (1, 2, 3, 10, 64):
            beginning = digests[7][:length]
            named = {digest for digest in digests if digest.startswith(beginning)}
            assert {blob.digest for blob in store.blobs(beginning)} == named
            assert [record.key for record in store.records(KEY[:length])] == [KEY]
        assert list(store.records("00")) == []

    def test_what_was_removed_is_gone_and_can_be_put_again(self, store: Store) -> None:
        digest = store.put(b"data")
        store.put_record("cubin", KEY, {"cubin": digest})
        assert store.remove_blobs([digest, "ab" * 32], 0) == {digest}
        assert not store.remove_blobs([digest], 0)
        assert not store.remove_blobs([], 0)
        store.remove_records([RecordName("cubin", KEY)])
        store.remove_records([RecordName("cubin", KEY)])
        assert (store.get(digest), store.get_record("cubin", KEY)) == (None, None)
        assert list(store.blobs()) == list(store.records()) == []
        assert store.get(store.put(b"data")) == b"data"

    def test_what_was_used_of_late_is_not_removed(self, store: Store) -> None:
        digest = store.put(b"data")
        assert not store.remove_blobs([digest], 3600)
        assert store.get(digest) == b"data"

    @pytest.mark.parametrize("use", ["get", "holds", "put"])
    def test_a_blob_in_the_trash_is_not_listed_and_comes_back_when_it_is_used(self, store: Store, use: str) -> None:
        digest = store.put(b"data")
        assert store.trash_blobs([digest], 3600) == frozenset()
        assert store.trash_blobs([digest, "ab" * 32], 0) == {digest}
        assert list(store.blobs()) == []
        assert {
            "get": lambda: store.get(digest) == b"data",
            "holds": lambda: store.holds(digest, 4),
            "put": lambda: store.put(b"data") == digest,
        }[use]()
        assert [blob.digest for blob in store.blobs()] == [digest]
        store.empty_trash(0)
        assert store.get(digest) == b"data"

    def test_the_trash_is_emptied_of_what_has_been_there_for_long(self, store: Store) -> None:
        digest = store.put(b"data")
        store.trash_blobs([digest], 0)
        assert store.empty_trash(3600) == 0
        assert store.empty_trash(0) == 4
        assert not store.holds(digest)
        assert store.get(digest) is None

    def test_a_right_blob_is_not_taken_for_damaged(self, store: Store) -> None:
        digest = store.put(b"data")
        assert not store.is_damaged(digest)
        assert not store.is_damaged("ab" * 32)
        assert not store.remove_damaged(digest)
        assert store.get(digest) == b"data"

    def test_nothing_is_left_to_sweep_after_whole_writes(self, store: Store) -> None:
        digest = store.put(b"data")
        store.put_record("cubin", KEY, {})
        assert store.remove_leftovers(0) == 0
        assert store.get(digest) == b"data"

    def test_many_writers_of_one_blob_all_succeed(self, store: Store) -> None:
        data, together = os.urandom(300_000), Barrier(WRITERS)

        def write(_: int) -> str:
            together.wait()
            return store.put(data)

        with ThreadPoolExecutor(WRITERS) as pool:
            assert set(pool.map(write, range(WRITERS))) == {blob_digest(data)}
        assert store.get(blob_digest(data)) == data


@dataclass(frozen=True)
class Place:
    """A store's bytes, and access to them behind its back."""

    open: Callable[[], Store]
    """Opens the store as another process would."""
    open_read_only: Callable[[], Store]
    overwrite: Callable[[str, bytes], None]
    remove: Callable[[str], None]
    names: Callable[[], set[str]]


class SharedStoreContract(StoreContract):
    """The contract of stores that others see too; has the fixture `place`, empty at first."""

    @pytest.fixture
    def store(self, place: Place) -> Store:
        return place.open()

    def test_another_process_sees_what_was_written(self, place: Place) -> None:
        digest = place.open().put(b"cubin")
        place.open().put_record("cubin", KEY, {"cubin": digest})
        assert place.open().get_record("cubin", KEY) == {"cubin": digest}
        assert place.open().get(digest) == b"cubin"

    def test_bytes_lie_under_the_same_names_in_every_kind_of_store(self, place: Place) -> None:
        store = place.open()
        store.put_record("cubin", KEY, {})
        digest = store.put(b"x")
        assert place.names() == {RECORD, blob_name(digest)}

    def test_two_stores_that_write_one_blob_at_once_leave_it_whole_and_once(self, place: Place) -> None:
        for _ in range(5):
            data, together = os.urandom(100_000), Barrier(2)
            stores = [place.open(), place.open()]

            def write(store: Store, data: bytes = data, together: Barrier = together) -> str:
                together.wait()
                return store.put(data)

            with ThreadPoolExecutor(2) as pool:
                assert set(pool.map(write, stores)) == {blob_digest(data)}
            assert place.open().get(blob_digest(data)) == data
            assert place.names() == {blob_name(blob_digest(data))}
            place.remove(blob_name(blob_digest(data)))

    def test_a_flipped_bit_counts_as_missing_and_a_put_repairs_it(self, place: Place) -> None:
        digest = place.open().put(b"right")
        for damage in (b"sight", b"", b"right and more"):
            place.overwrite(blob_name(digest), damage)
            assert place.open_read_only().get(digest) is None
            assert place.open().put(b"right") == digest
            assert place.open_read_only().get(digest) == b"right"

    def test_a_truncated_blob_is_not_held_and_a_flipped_bit_is_left_to_who_reads(self, place: Place) -> None:
        digest = place.open().put(b"right")
        place.overwrite(blob_name(digest), b"sight")
        assert place.open_read_only().holds(digest, 5)
        assert place.open_read_only().get(digest) is None
        place.overwrite(blob_name(digest), b"righ")
        assert not place.open_read_only().holds(digest, 5)

    def test_a_damaged_record_counts_as_missing(self, place: Place) -> None:
        store = place.open()
        store.put_record("cubin", KEY, {"a": 1})
        for damage in (b'{"a": ', b"[1]", b"\xff", b'{"a":' * 100_000):
            place.overwrite(RECORD, damage)
            assert store.get_record("cubin", KEY) is None

    def test_a_read_only_store_reads_and_refuses_to_write(self, place: Place) -> None:
        digest = place.open().put(b"data")
        store = place.open_read_only()
        assert store.get(digest) == b"data"
        assert store.put(b"data") == digest  # it is there already
        before = place.names()
        with pytest.raises(StoreError, match="read-only here: unset FARM_READ_ONLY"):
            store.put(b"other")
        with pytest.raises(StoreError, match="read-only"):
            store.put_record("cubin", KEY, {})
        for removal in (
            lambda: store.remove_blobs([digest], 0),
            lambda: store.trash_blobs([digest], 0),
            lambda: store.empty_trash(0),
            lambda: store.remove_damaged(digest),
            lambda: store.remove_records([RecordName("cubin", KEY)]),
        ):
            with pytest.raises(StoreError, match="read-only here: unset FARM_READ_ONLY to remove something"):
                removal()
        assert place.names() == before

    def test_a_read_only_store_reads_what_is_in_the_trash_and_leaves_it_there(self, place: Place) -> None:
        digest = place.open().put(b"data")
        place.open().trash_blobs([digest], 0)
        before = place.names()
        assert place.open_read_only().holds(digest, 4)
        assert place.open_read_only().get(digest) == b"data"
        assert place.names() == before == {f"v1/trash/{digest[:2]}/{digest}"}

    def test_a_damaged_blob_is_found_and_removed(self, place: Place) -> None:
        digest, right = place.open().put(b"right"), place.open().put(b"data")
        place.overwrite(blob_name(digest), b"wrong")
        assert place.open_read_only().is_damaged(digest)
        assert {blob.digest for blob in place.open().blobs()} == {digest, right}
        assert place.open().remove_damaged(digest)
        assert place.names() == {blob_name(right)}

    def test_what_is_not_the_stores_own_is_neither_listed_nor_removed(self, place: Place) -> None:
        foreign = {"v1/cas/ab/notes.txt", "v1/cas/ab/" + "A" * 64, f"v1/ac/cubin/0f/{KEY}", "v1/ac/Cubin/0f/x.json"}
        for name in foreign:
            place.overwrite(name, b"mine")
        store = place.open()
        assert list(store.blobs()) == list(store.records()) == []
        store.remove_leftovers(0)
        assert place.names() == foreign


@dataclass(frozen=True)
class FolderPlace(Place):
    """A place whose files can be made older."""

    age: Callable[[str, float], None]
    """Makes a blob or record older by that many seconds."""


class AgingStoreContract(SharedStoreContract):
    """The contract of stores in folders; has the fixture `place`, a FolderPlace."""

    def test_whoever_asks_for_an_old_blob_makes_it_young(self, place: FolderPlace) -> None:
        digest = place.open().put(b"data")
        for ask in (
            lambda store: store.get(digest),
            lambda store: store.put(b"data"),
            lambda store: store.holds(digest),
        ):
            place.age(blob_name(digest), 7200)
            [blob] = place.open().blobs()
            assert blob.age_seconds > 7000
            assert not place.open().is_damaged(digest)  # looking does not count
            assert place.open_read_only().get(digest) == b"data"  # and no more can who may not write
            [blob] = place.open().blobs()
            assert blob.age_seconds > 7000
            ask(place.open())
            [blob] = place.open().blobs()
            assert blob.age_seconds < 60
            assert not place.open().remove_blobs([digest], 3600)

    def test_an_old_blob_is_removed_or_found_whole_by_whoever_asks_at_that_moment(self, place: FolderPlace) -> None:
        for _ in range(50):
            digest, together = place.open().put(b"data"), Barrier(2)
            place.age(blob_name(digest), 7200)
            stores = place.open(), place.open()

            def use(together: Barrier = together, store: Store = stores[0]) -> str:
                together.wait()
                return store.put(b"data")

            def collect(digest: str = digest, together: Barrier = together, store: Store = stores[1]) -> bool:
                together.wait()
                return bool(store.remove_blobs([digest], 3600))

            with ThreadPoolExecutor(2) as pool:
                used, collected = pool.submit(use), pool.submit(collect)
                assert used.result() == digest
                collected.result()
            # The writer may refer to it: it must be there, whichever came first.
            assert place.open().get(digest) == b"data"
            assert place.names() == {blob_name(digest)}


def folder_place(folder: Path, opened: Callable[[bool], Store]) -> FolderPlace:
    """A place in a folder, with what opens a store there, read-only or not."""

    def overwrite(name: str, data: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return FolderPlace(
        open=lambda: opened(False),
        open_read_only=lambda: opened(True),
        overwrite=overwrite,
        remove=lambda name: (folder / name).unlink(),
        names=lambda: {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()},
        age=lambda name, seconds: os.utime(folder / name, 2 * (time.time() - seconds,)),
    )
