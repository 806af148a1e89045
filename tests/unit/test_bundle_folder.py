"""The bundle's folder: replaced whole, and no danger to any other file."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.bundle.writer import check_target, safe_names, write_bundle
from farm.errors import BlobLostError, UsageError
from farm.store.memory import MemoryStore
from tests.bundle_samples import JOB, TOOLS, build, contents, manifest_of, result, stored_cubins, validator, write


@pytest.fixture
def store() -> MemoryStore:
    return stored_cubins()


def test_layer_names_cannot_leave_the_folder_or_meet(tmp_path: Path, store: MemoryStore) -> None:
    names = ["../../evil", "/etc/passwd", "a/b", "a:b", "A_B", "manifest.json", "...", "Größe"]
    manifest = write(tmp_path / "deep" / "out", store, *names)
    assert [layer["name"] for layer in manifest["layers"]] == names
    validator().validate(manifest)
    assert len(contents(tmp_path / "deep" / "out")) == 2 * len(names) + 2
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [
        path.name for path in (tmp_path / "deep" / "out").rglob("*") if path.is_file()
    ]


@given(st.lists(st.text(max_size=120), max_size=12))
def test_safe_names_are_plain_and_differ_on_any_file_system(names: list[str]) -> None:
    safe = safe_names(names)
    assert len({name.lower() for name in safe} | {"manifest.json"}) == len(names) + 1
    assert all(name.isascii() and "/" not in name and name[0] not in ".-" and len(name) < 128 for name in safe)


def test_a_previous_bundle_is_replaced_whole(tmp_path: Path, store: MemoryStore) -> None:
    write(tmp_path / "out", store, "conv1", "conv2", "conv3")
    write(tmp_path / "out", store, "conv1", "other")
    assert set(contents(tmp_path / "out")) == {
        "manifest.json",
        "provenance.json",
        *(f"{name}/{arch}.cubin" for name in ("conv1", "other") for arch in ("sm_80", "sm_90")),
    }
    assert not (tmp_path / "out" / "conv3").exists()


def test_an_empty_folder_is_filled(tmp_path: Path, store: MemoryStore) -> None:
    write(tmp_path, store)
    assert len(contents(tmp_path)) == 6


@pytest.mark.parametrize("name", ["notes.txt", "conv1/notes.txt", ".git/config", "manifest.json"])
def test_a_folder_with_a_foreign_file_is_left_alone(name: str, tmp_path: Path, store: MemoryStore) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text('{"name": "another program\'s"}')
    with pytest.raises(UsageError, match=path.name):
        write(tmp_path / "out", store)
    assert list(contents(tmp_path)) == [f"out/{name}"]


def test_a_bundle_with_a_file_of_the_users_is_left_alone(tmp_path: Path, store: MemoryStore) -> None:
    write(tmp_path / "out", store)
    (tmp_path / "out" / "conv1" / "mine.txt").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=r"out holds conv1/mine\.txt, which"):
        write(tmp_path / "out", store, "new")
    assert contents(tmp_path) == before


def test_a_manifest_that_names_files_elsewhere_deletes_none(tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    (tmp_path / "precious").write_text("mine")
    manifest["layers"][0]["launches"][0]["cubins"]["sm_75"] = {"path": "../precious"}
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    write(tmp_path / "out", store)
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("kind", ["pipe", "device", "deep", "linked folder"])
def test_a_folder_that_only_looks_like_a_bundle_is_left_alone(kind: str, tmp_path: Path, store: MemoryStore) -> None:
    write(tmp_path / "out", store, "conv1")
    manifest = tmp_path / "out" / "manifest.json"
    if kind == "linked folder":
        (tmp_path / "out" / "conv1").rename(tmp_path / "elsewhere")
        (tmp_path / "out" / "conv1").symlink_to(tmp_path / "elsewhere")
    else:
        manifest.unlink()
    if kind == "pipe":
        os.mkfifo(manifest)
    elif kind == "device":
        manifest.symlink_to("/dev/zero")
    elif kind == "deep":
        manifest.write_text("[" * 100_000)
    with pytest.raises(UsageError, match="which is not part of a bundle"):
        write(tmp_path / "out", store)
    assert (tmp_path / "out" / "conv1" / "sm_90.cubin").exists()


@pytest.mark.parametrize("name", ["out", "out.farm"])
def test_the_bundle_of_another_network_is_not_replaced(name: str, tmp_path: Path, store: MemoryStore) -> None:
    results = [result(0, "sm_80"), result(0, "sm_90")]
    write_bundle(tmp_path / name, replace(JOB, name="other"), [build(0, "conv1")], results, TOOLS, store)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=f"{name} is the bundle of other: name another one, or remove it first"):
        write_bundle(tmp_path / name, JOB, [build(0, "conv1")], results, TOOLS, store)
    assert contents(tmp_path) == before


def test_a_damaged_bundle_is_replaced(tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    (tmp_path / "out" / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 1}))
    write(tmp_path / "out", store)
    assert validator().is_valid(manifest_of(tmp_path / "out"))


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file"):
        check_target(tmp_path / "file" / "out", "net")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused_before_anything_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written"):
        check_target(tmp_path / "deep" / "out", "net")


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path: Path, store: MemoryStore) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        write(tmp_path / "out", store)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_an_error_in_words(tmp_path: Path, store: MemoryStore) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        write(tmp_path / "closed" / "out", store)


def test_a_lost_cubin_writes_nothing_and_says_how_to_get_it_back(tmp_path: Path, store: MemoryStore) -> None:
    lost = replace(result(0, "sm_90"), cubin="00" * 32)
    with pytest.raises(BlobLostError, match="has lost the cubin conv1 sm_90: run farm compile again"):
        write_bundle(tmp_path / "out", JOB, [build(0, "conv1")], [result(0, "sm_80"), lost], TOOLS, store)
    assert list(tmp_path.iterdir()) == []
