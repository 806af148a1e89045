"""A member of a bundle is a regular file inside it, of the manifest's size and digest; anything else is refused."""

from __future__ import annotations

import hashlib
import os
import resource
import zipfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_LZMA, ZipFile, ZipInfo

import pytest

from farm.bundle.members import MOST_DIRECTORY_BYTES, MOST_MANIFEST_BYTES, Member, open_members
from farm.errors import BundleError

DATA = b"cubin"
MEMBER = Member("conv1/sm_90.cubin", hashlib.sha256(DATA).hexdigest(), len(DATA))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bundle" / "conv1").mkdir(parents=True)
    (tmp_path / "bundle" / MEMBER.path).write_bytes(DATA)
    return tmp_path / "bundle"


@pytest.fixture
def little_memory() -> Iterator[None]:
    """1 GiB more than the process has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def refusal(path: Path, member: Member = MEMBER) -> str:
    with pytest.raises(BundleError) as caught:
        open_members(path).read(member)
    [line] = str(caught.value).splitlines()
    assert line.startswith(f"{path}: {member.path} is ")
    return line


def test_a_file_of_the_manifests_size_and_digest_is_read(folder: Path) -> None:
    assert open_members(folder).read(MEMBER) == DATA


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/dev/zero", "not inside the folder"),
        ("../secret", "not inside the folder"),
        ("conv1/../../secret", "not inside the folder"),
        ("conv1//sm_90.cubin", "not inside the folder"),
        ("./conv1/sm_90.cubin", "not inside the folder"),
        ("conv1/sm\0_90.cubin", "not inside the folder"),
        ("", "not inside the folder"),
        ("conv1", "not a regular file"),
        ("pipe", "not a regular file"),
        ("link", "has a link"),
        ("linked/secret", "has a link"),
        ("conv1/sm_90.cubin/x", "has a link, or a file in the place of a folder"),
        ("\ud800", "not text"),
        ("x" * 5000, "File name too long"),
    ],
)
def test_a_path_to_anything_but_a_regular_file_inside_is_refused(path: str, why: str, folder: Path) -> None:
    (folder.parent / "secret").write_bytes(DATA)
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "linked").symlink_to(folder.parent)
    assert why in refusal(folder, Member(path, MEMBER.sha256, MEMBER.bytes))


@pytest.mark.usefixtures("little_memory")
def test_a_sparse_file_of_a_terabyte_is_refused_by_its_size(folder: Path) -> None:
    os.truncate(folder / MEMBER.path, 2**40)
    assert "1,099,511,627,776 bytes" in refusal(folder)
    assert "1,099,511,627,776 bytes" in refusal(folder, Member(MEMBER.path, MEMBER.sha256, 2**40))


@pytest.mark.parametrize("data", [DATA + b"x", DATA[:-1], b"CUBIN"])
def test_another_size_or_digest_is_refused(data: bytes, folder: Path) -> None:
    (folder / MEMBER.path).write_bytes(data)
    assert ("its digest differs" if len(data) == len(DATA) else f"it has {len(data)} bytes") in refusal(folder)


def archive(path: Path, method: int = zipfile.ZIP_STORED, data: bytes = DATA) -> Path:
    with ZipFile(path, "w", method) as file:
        file.writestr(ZipInfo(MEMBER.path), data, method)
    return path


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("method", [ZIP_DEFLATED, ZIP_BZIP2, ZIP_LZMA])
def test_a_compressed_archive_is_refused_and_not_inflated(method: int, tmp_path: Path) -> None:
    assert "it is compressed" in refusal(archive(tmp_path / "x.farm", method, bytes(2**24)))


def with_entry(path: Path, offset: int, value: bytes) -> Path:
    """An archive with other bytes in the directory's entry of its member."""
    data = bytearray(archive(path).read_bytes())
    start = data.index(b"PK\1\2") + offset
    data[start : start + len(value)] = value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (8, b"\1\0", "encrypted"),
        (8, b"\x40\0", "cannot|not supported|strong"),
        (6, b"\xff\0", "version"),
        (10, b"\x63\0", "compressed"),
        (20, b"\xff\xff\xff\x7f", "compressed"),
        (
            20,
            b"\xff\xff\xff\x7f\xff\xff\xff\x7f",
            "bytes, the manifest says 5|Overlapped",
        ),  # as Python's release has it
        (42, b"\xff\xff\xff\x7f", ""),
    ],
)
def test_an_entry_of_another_kind_is_refused(offset: int, value: bytes, why: str, tmp_path: Path) -> None:
    path = with_entry(tmp_path / "x.farm", offset, value)
    with pytest.raises(BundleError, match=rf"^\S+: {MEMBER.path} is damaged: .*({why}).*\. Fetch the bundle again$"):
        open_members(path).read(MEMBER)


def test_two_files_of_one_name_are_refused_since_readers_differ_in_which_they_take(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "x.farm", "w") as file:
        file.writestr(MEMBER.path, b"CUBIN")
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr(MEMBER.path, DATA)
    assert "the same name" in refusal(tmp_path / "x.farm")


def test_files_that_overlap_are_refused_since_a_small_archive_would_hold_much(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "inner.farm", "w") as file:
        file.writestr(ZipInfo(MEMBER.path), DATA)
    inner = (tmp_path / "inner.farm").read_bytes()
    with ZipFile(tmp_path / "x.farm", "w") as file:
        file.writestr(ZipInfo("outer"), inner[: inner.index(b"PK\1\2")])
    outer = bytearray((tmp_path / "x.farm").read_bytes())
    directory, end = outer.index(b"PK\1\2"), outer.rindex(b"PK\5\6")
    entry = bytearray(inner[inner.index(b"PK\1\2") : inner.rindex(b"PK\5\6")])
    entry[42:46] = (30 + len("outer")).to_bytes(4, "little")
    outer[end + 8 : end + 12] = b"\2\0\2\0"
    outer[end + 12 : end + 16] = (end - directory + len(entry)).to_bytes(4, "little")
    (tmp_path / "x.farm").write_bytes(outer[:end] + entry + outer[end:])
    assert ZipFile(tmp_path / "x.farm").read(MEMBER.path) == DATA
    assert "overlap" in refusal(tmp_path / "x.farm")


@pytest.mark.usefixtures("little_memory")
def test_an_archives_directory_has_a_limit(tmp_path: Path) -> None:
    data = bytearray(archive(tmp_path / "x.farm").read_bytes())
    end = data.rindex(b"PK\5\6")
    more = data[data.index(b"PK\1\2") : end] * (MOST_DIRECTORY_BYTES // 50)
    data[end + 12 : end + 16] = len(more).to_bytes(4, "little")
    (tmp_path / "x.farm").write_bytes(data[: data.index(b"PK\1\2")] + more + data[end:])
    assert "its directory has" in refusal(tmp_path / "x.farm")


def test_every_cut_of_an_archive_is_refused_or_whole(tmp_path: Path) -> None:
    whole = archive(tmp_path / "x.farm").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "x.farm").write_bytes(whole[:length])
        refusal(tmp_path / "x.farm")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_bundle_that_is_a_pipe_or_a_device_is_refused(kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "pipe" if kind == "pipe" else Path("/dev/zero")
    with pytest.raises(BundleError, match="is not a bundle: it is not a regular file"):
        open_members(path).manifest()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", ["bundle", "bundle.farm"])
def test_a_manifest_has_a_limit(name: str, tmp_path: Path) -> None:
    if name == "bundle":
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
        os.truncate(tmp_path / name / "manifest.json", 2**40)
    else:
        with ZipFile(tmp_path / name, "w") as file:
            file.writestr("manifest.json", bytes(MOST_MANIFEST_BYTES + 1))
    with pytest.raises(BundleError, match=r"is not a bundle: its manifest\.json has [\d,]+ bytes, more than"):
        open_members(tmp_path / name).manifest()
