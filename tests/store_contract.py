"""What every kind of store does: one suite, run over each."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import pytest

from farm.errors import StoreError
from farm.store.contract import Store, blob_digest

KEY = "0f" * 32
RECORD = f"v1/ac/cubin/{KEY[:2]}/{KEY}.json"
WRITERS = 8


def blob_name(digest: str) -> str:
    return f"v1/cas/{digest[:2]}/{digest}"


class StoreContract:
    """A class of tests for each kind of store derives from this one and has the fixture `store`."""

    def test_a_blob_comes_back_under_its_digest(self, store: Store) -> None:
        for data in (b"", b"cubin", bytes(range(256)) * 5000):
            assert store.put(data) == blob_digest(data)
            assert store.put(data) == blob_digest(data)
            assert store.get(blob_digest(data)) == data

    def test_what_was_never_put_is_none(self, store: Store) -> None:
        assert store.get("ab" * 32) is None
        assert store.get_record("cubin", "ab" * 32) is None
        assert not store.holds("ab" * 32)

    def test_a_store_holds_what_was_put(self, store: Store) -> None:
        assert store.holds(store.put(b"held"))

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
        ):
            with pytest.raises(ValueError, match="not a name"):
                call()

    @pytest.mark.parametrize("stage", ["", "../x", "Cubin", "a/b", "a\n"])
    def test_a_stage_that_is_no_word_is_refused(self, store: Store, stage: str) -> None:
        with pytest.raises(ValueError, match="not a name"):
            store.put_record(stage, KEY, {})

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
    """Where a store keeps its bytes, and how to get at them behind its back."""

    open: Callable[[], Store]
    """As another process would."""
    open_read_only: Callable[[], Store]
    overwrite: Callable[[str, bytes], None]
    remove: Callable[[str], None]
    names: Callable[[], set[str]]


class SharedStoreContract(StoreContract):
    """The same for stores that others see too; has the fixture `place`, empty at first."""

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

    def test_a_damaged_record_counts_as_missing(self, place: Place) -> None:
        store = place.open()
        store.put_record("cubin", KEY, {"a": 1})
        for damage in (b'{"a": ', b"[1]", b"\xff"):
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
        assert place.names() == before


def folder_place(folder: Path, opened: Callable[[bool], Store]) -> Place:
    """A place in a folder, with what opens a store there, read-only or not."""

    def overwrite(name: str, data: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return Place(
        open=lambda: opened(False),
        open_read_only=lambda: opened(True),
        overwrite=overwrite,
        remove=lambda name: (folder / name).unlink(),
        names=lambda: {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()},
    )
