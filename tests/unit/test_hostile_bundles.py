"""A bundle is hostile input: every fault in one of its files is a BundleError or a UsageError of one line."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import pytest

from farm.bundle.contents import contents_of
from farm.bundle.manifest import with_digest
from farm.bundle.reader import Bundle
from farm.errors import BundleError, UsageError
from farm.runtime.glue_kernels import check_arguments
from farm.runtime.plan_text import plan_of, read_plan, with_end
from tests.toolchain.played_bundle import played_bundle
from tests.toolchain.sample_bundles import sample_models

MUTANTS = 500
"""Number of mutants of each kind; each is read in several ways."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, 1e308, -0.0),
    *(float("nan"), float("inf"), "", " ", "x", "0" * 64, "float32", "input", "sm_90", "sm_9", "conv2d", "\x1b[2J\n"),
    *("\ud800", "\u202e", "\x00", "../../etc/passwd", "/dev/zero", "x" * 10_000, [], {}, [[]], [{}], {"": {}}, [None]),
)
TEXTS = (
    *(b"", b"\0", b"null", b"[]", b"{}", b"1", b'"x"', b"{", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"NaN", b"1" * 5000),
    *(b"[" * 100_000, b'{"layers":' * 50_000, b'{"a":1,"a":2}', b'{"schema_version": 1}', b'{"schema_version": 1e999}'),
    *(b'{"schema_version": true}', b'{"schema_version": "2"}', b'{"schema_version": ' + b"9" * 4301 + b"}"),
)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two folders, with gates and a residual, and with constants."""
    return [
        played_bundle(folder / "bundle", path, batches=(1, 64))
        for folder, path in sample_models(tmp_path_factory.mktemp("bundles"))
    ]


class Reading:
    """Reads bundles in every way, and counts the calls."""

    def __init__(self) -> None:
        self.calls = self.refused = 0

    def __call__(self, path: Path) -> None:
        opened = self.call(lambda: Bundle(path))
        if opened is None:
            return
        self.call(lambda: contents_of(opened))
        self.call(opened.damage)
        self.call(lambda: opened.file_bytes)
        self.call(lambda: [layer.cubins_for("sm_90") for layer in opened.layers.values()])
        plan = self.call(lambda: plan_of(opened))
        if plan is not None:
            self.call(lambda: check_arguments(opened, plan))

    def call(self, read: Callable[[], Any]) -> Any:
        self.calls += 1
        try:
            return read()
        except (BundleError, UsageError) as error:
            self.refused += 1
            said = str(error)
        assert said.isprintable()
        return None


@pytest.fixture
def reading() -> Reading:
    return Reading()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and its key."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from places(each)


def mutated_manifest(rng: random.Random, manifest: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(manifest)
    for _ in range(rng.choice((1, 1, 2))):
        found = list(places(made))
        holder, key = rng.choice(found)
        match rng.randrange(5):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[str(rng.choice(VALUES))] = rng.choice(VALUES)
            case 2:
                other, place = rng.choice(found)
                holder[key] = copy.deepcopy(other[place])
            case 3 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case _:
                holder[key] = copy.deepcopy(rng.choice(VALUES))
    return made


def manifest_of(bundle: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    return manifest


def text_of(manifest: dict[str, Any]) -> bytes:
    text = json.dumps({"sha256": "0" * 64, **{k: v for k, v in manifest.items() if k != "sha256"}}).encode()
    return text.replace(b"0" * 64, hashlib.sha256(text).hexdigest().encode(), 1)


def replace_member(bundle: Path, name: str, data: bytes) -> None:
    """Puts other bytes in the place of a file, of which the manifest tells size and digest."""
    manifest = manifest_of(bundle)
    entries = [manifest["network"], *manifest["runtime"]["files"]]
    [entry] = [each for each in entries if each["path"] == name]
    entry |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (bundle / name).write_bytes(data)
    (bundle / "manifest.json").write_bytes(with_digest({k: v for k, v in manifest.items() if k != "sha256"}))


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(made))
        match rng.randrange(4):
            case 0:
                made[place] ^= 1 << rng.randrange(8)
            case 1:
                made[place : place + 4] = rng.choice((b"\0" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\1\0\0\0"))
            case 2:
                del made[place : place + rng.randrange(1, 64)]
            case _:
                made[place:place] = made[place : place + rng.randrange(1, 64)]
        made = made or bytearray(1)
    return bytes(made)


def test_a_manifest_with_other_values_is_refused_or_read(bundles: list[Path], reading: Reading, tmp_path: Path) -> None:
    rng = random.Random(31)
    for bundle in bundles:
        shutil.copytree(bundle, copied := tmp_path / bundle.parent.name)
        for _ in range(MUTANTS):
            text = text_of(mutated_manifest(rng, manifest_of(bundle)))
            (copied / "manifest.json").write_bytes(text)
            reading(copied)
    assert reading.calls > 2 * MUTANTS + 200
    assert reading.refused > MUTANTS


def test_a_manifest_that_is_no_object_or_nested_deeply_is_refused(
    bundles: list[Path], reading: Reading, tmp_path: Path
) -> None:
    shutil.copytree(bundles[0], copied := tmp_path / "bundle")
    whole = (copied / "manifest.json").read_bytes()
    rng = random.Random(31)
    for text in TEXTS:
        (copied / "manifest.json").write_bytes(text)
        reading(copied)
    assert reading.refused == reading.calls == len(TEXTS)
    for _ in range(MUTANTS):
        (copied / "manifest.json").write_bytes(mutated_bytes(rng, whole))
        reading(copied)


@pytest.mark.parametrize("name", ["network.plan", "network.onnx", "glue.ptx", "network.constants"])
def test_a_file_with_other_bytes_is_refused_or_read(
    bundles: list[Path], reading: Reading, tmp_path: Path, name: str
) -> None:
    rng = random.Random(31)
    shutil.copytree(bundles[1], copied := tmp_path / "bundle")
    data = (copied / name).read_bytes()
    for _ in range(MUTANTS // 4):
        made = mutated_bytes(rng, data)
        if name == "network.plan":
            made = with_end(made.decode("latin-1").encode("ascii", "replace").decode().splitlines()[1:-1])
        replace_member(copied, name, made)
        reading(copied)


def test_an_archive_with_other_bytes_is_refused_or_read(bundles: list[Path], reading: Reading, tmp_path: Path) -> None:
    rng = random.Random(31)
    path = tmp_path / "bundle.farm"
    with ZipFile(path, "w") as file:
        for each in sorted(bundles[0].rglob("*")):
            if each.is_file() and each.name != "glue.ptx":
                file.write(each, each.relative_to(bundles[0]))
    data = path.read_bytes()
    start = data.index(b"PK\1\2")
    for _ in range(MUTANTS):
        path.write_bytes(data[:start] + mutated_bytes(rng, data[start:]))
        reading(path)
    assert reading.refused > MUTANTS // 2


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, 6, 97, 99])
@pytest.mark.parametrize("flags", [0, 1, 0x40, 0x2000])
def test_an_encrypted_or_compressed_archive_is_refused(
    bundles: list[Path], tmp_path: Path, method: int, flags: int
) -> None:
    path = tmp_path / "bundle.farm"
    with ZipFile(path, "w") as file:
        for each in sorted(bundles[0].rglob("*")):
            if each.is_file():
                info = ZipInfo(str(each.relative_to(bundles[0])))
                file.writestr(info, each.read_bytes(), method if method in (8, 12, 14) else zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    for signature, place in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        start = -1
        while (start := data.find(signature, start + 1)) >= 0:
            data[start + place : start + place + 2] = flags.to_bytes(2, "little")
            data[start + place + 2 : start + place + 4] = method.to_bytes(2, "little")
    path.write_bytes(data)
    with pytest.raises(BundleError) as caught:
        Bundle(path)
    assert str(caught.value).isprintable()


def test_a_plan_with_a_mutated_word_is_refused_or_read(bundles: list[Path], reading: Reading) -> None:
    lines = (bundles[1] / "network.plan").read_text().splitlines()[1:-1]
    rng = random.Random(31)
    for _ in range(MUTANTS):
        words = [line.split(" ") for line in lines]
        chosen = rng.choice(words)
        chosen[rng.randrange(len(chosen))] = str(rng.choice(VALUES)).encode("utf-8", "replace").decode()
        reading.call(partial(read_plan, with_end([" ".join(each) for each in words])))
