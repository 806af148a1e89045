"""One contract for every kind of store."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.errors import StoreError
from farm.settings import load_settings
from farm.store import open_store
from farm.store.contract import Store, blob_digest
from farm.store.disk import DiskStore
from farm.store.memory import MemoryStore

KEY = "0f" * 32


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    kinds: dict[str, Callable[[], Store]] = {"memory": MemoryStore, "disk": lambda: DiskStore(tmp_path / "store")}
    return kinds[request.param]()


def test_a_blob_comes_back_under_its_digest(store: Store) -> None:
    for data in (b"", b"cubin", bytes(range(256)) * 5000):
        assert store.put(data) == blob_digest(data)
        assert store.get(blob_digest(data)) == data


def test_what_was_never_put_is_none(store: Store) -> None:
    assert store.get(KEY) is None
    assert store.get_record("cubin", KEY) is None


def test_a_record_comes_back_and_the_last_one_wins(store: Store) -> None:
    store.put_record("cubin", KEY, {"a": 1, "b": [1, 2], "c": {"d": None}})
    assert store.get_record("cubin", KEY) == {"a": 1, "b": [1, 2], "c": {"d": None}}
    store.put_record("cubin", KEY, {"a": (2, 3)})
    assert store.get_record("cubin", KEY) == {"a": [2, 3]}
    assert store.get_record("template", KEY) is None


@pytest.mark.parametrize("name", ["", "ab", "../" * 21 + "a", "G" * 64, "A" * 64, KEY + "/", f"{KEY}\n"])
def test_a_name_that_is_no_digest_is_refused(store: Store, name: str) -> None:
    for call in (
        lambda: store.get(name),
        lambda: store.get_record("cubin", name),
        lambda: store.put_record("cubin", name, {}),
    ):
        with pytest.raises(ValueError, match="not a name"):
            call()


@pytest.mark.parametrize("stage", ["", "../x", "Cubin", "a/b", "a\n"])
def test_a_stage_that_is_no_word_is_refused(store: Store, stage: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        store.put_record(stage, KEY, {})


def test_a_damaged_blob_counts_as_missing_and_is_repaired_by_a_put(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    digest = store.put(b"right")
    path = tmp_path / "v1" / "cas" / digest[:2] / digest
    for damage in (b"wrong", b""):
        path.write_bytes(damage)
        assert store.get(digest) is None
        store.put(b"right")
        assert store.get(digest) == b"right"


def test_a_damaged_record_counts_as_missing(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.put_record("cubin", KEY, {"a": 1})
    path = tmp_path / "v1" / "ac" / "cubin" / KEY[:2] / f"{KEY}.json"
    for damage in (b'{"a": ', b"[1]", b"\xff"):
        path.write_bytes(damage)
        assert store.get_record("cubin", KEY) is None


def test_many_writers_of_one_blob_leave_one_whole_file(tmp_path: Path) -> None:
    store, data = DiskStore(tmp_path), os.urandom(300_000)
    threads = [threading.Thread(target=store.put, args=(data,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get(blob_digest(data)) == data
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [blob_digest(data)]


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


def test_files_are_as_readable_as_the_user_makes_files(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    DiskStore(tmp_path / "store").put(b"data")
    modes = {path.stat().st_mode for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == {(tmp_path / "usual").stat().st_mode}


def test_a_store_whose_root_is_a_file_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(StoreError, match="FARM_STORE"):
        DiskStore(tmp_path / "root").put(b"data")


def test_a_read_only_store_reads_and_refuses_to_write(tmp_path: Path) -> None:
    digest = DiskStore(tmp_path).put(b"data")
    store = DiskStore(tmp_path, read_only=True)
    assert store.get(digest) == b"data"
    assert store.put(b"data") == digest  # it is there already
    with pytest.raises(StoreError, match="read-only"):
        store.put(b"other")


def test_the_configured_store_is_the_one_that_opens(tmp_path: Path) -> None:
    settings = load_settings({"FARM_STORE": f"file://{tmp_path}/here", "FARM_READ_ONLY": "1"})
    assert open_store(settings).describe() == f"folder {tmp_path}/here"
    with pytest.raises(StoreError, match="read-only"):
        open_store(settings).put(b"x")
