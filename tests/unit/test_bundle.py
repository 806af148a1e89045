"""The bundle: complete, true to its schema, and no danger to any other file."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from codegen.spec import AddResidual, Clip, Conv2d, LayerSpec, Linear, SkippedLayer
from codegen.tiling import Part, Tiling
from farm.bundle import safe_names, write_bundle
from farm.errors import BlobLostError, UsageError
from farm.jobs import Build, BuildOptions, BuildResult, Job, Outcome, Status, TilingChoice
from farm.store.contract import blob_digest
from farm.store.memory import MemoryStore

TOOLS = {"nvcc": "13.0.88", "ptxas": "13.0.88"}
JOB = Job(
    id="0123456789ab",
    submission="s",
    submitter="ada",
    name="net",
    model="/somewhere/private/net.onnx",
    model_digest="cd" * 32,
    options=BuildOptions(("sm_90", "sm_80")),
    status=Status.SUCCEEDED,
    reason="",
    stage="",
    done=4,
    total=4,
    hits=0,
    tries=1,
    submitted_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    skipped=(SkippedLayer("fc", "Gemm", "fully connected layers are not compiled"),),
)


SPEC = Conv2d(3, 8, 9, 4, 3, 3, stride=(1, 2), padding=(1, 0, 1, 2))
TILING = Tiling(8, 4, 1, 4, 3, 2)
WHOLE = (Part(0, 1),)


def build(number: int, name: str) -> Build:
    return Build(number, JOB.id, number, name, "x", f"{name}.out", SPEC, TILING, "ab" * 32, 11, WHOLE)


def cubin(number: int, arch: str, part: int = 0) -> bytes:
    return f"cubin {number} {arch} {part}".encode()


def result(number: int, arch: str, part: int = 0) -> BuildResult:
    data = cubin(number, arch, part)
    key = blob_digest(b"key" + data)
    return BuildResult(
        number, arch, part, Outcome.BUILT, key, key, blob_digest(data), len(data), "ef" * 32, 11, 89, 32, 0
    )


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for number in range(9):
        for arch in ("sm_80", "sm_90"):
            for part in range(3):
                store.put(cubin(number, arch, part))
    return store


def write(directory: Path, store: MemoryStore, *names: str) -> dict[str, Any]:
    return write_layers(directory, store, *[build(i, name) for i, name in enumerate(names or ("conv1", "conv2"))])


def write_layers(directory: Path, store: MemoryStore, *builds: Build) -> dict[str, Any]:
    results = [
        result(each.id, arch, part)
        for each in builds
        for arch in ("sm_80", "sm_90")
        for part in reversed(range(len(each.parts)))
    ]
    manifest = json.loads(write_bundle(directory, JOB, builds, results, TOOLS, store).read_text())
    assert isinstance(manifest, dict)
    return manifest


def validator() -> Draft202012Validator:
    schema = json.loads(files("farm").joinpath("manifest.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FormatChecker())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_manifest_keeps_to_its_schema(tmp_path: Path, store: MemoryStore) -> None:
    validator().validate(write(tmp_path / "out", store))


def test_builds_of_one_layer_are_one_entry_whose_launches_say_their_architectures(
    tmp_path: Path, store: MemoryStore
) -> None:
    other = replace(TILING, stages=3)
    first = replace(build(0, "conv1"), choices=(TilingChoice("sm_80"),))
    parts = (Part(0, 1), Part(1, 2))
    second = replace(first, id=1, tiling=other, parts=parts, choices=(TilingChoice("sm_90", "NVIDIA Made-Up"),))
    results = [result(0, "sm_80"), *(result(1, "sm_90", part) for part in (0, 1))]
    path = write_bundle(tmp_path / "out", JOB, [first, second, build(2, "conv2")], results, TOOLS, store)
    manifest = json.loads(path.read_text())
    layer, _ = manifest["layers"]
    assert manifest["schema_version"] == 3
    assert "tiling" not in layer
    assert [each["archs"] for each in layer["tilings"]] == [["sm_80"], ["sm_90"]]
    paths = [[cubin["path"] for cubin in launch["cubins"].values()] for launch in layer["launches"]]
    assert paths == [["conv1/sm_80.cubin"], ["conv1/sm_90.part1.cubin"], ["conv1/sm_90.part2.cubin"]]


@pytest.mark.parametrize("part", ["toolchain", "layers", "skipped", "schema_version"])
def test_the_schema_notices_a_missing_part(part: str, tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    del manifest[part]
    assert not validator().is_valid(manifest)


@pytest.mark.parametrize("path", ["/etc/x.cubin", "../x.cubin", "conv1/../../x.cubin", "x.cubin", ".a/x.cubin"])
def test_the_schema_allows_no_path_out_of_the_bundle(path: str, tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    manifest["layers"][0]["launches"][0]["cubins"]["sm_90"]["path"] = path
    assert not validator().is_valid(manifest)


def test_every_cubin_lies_where_the_manifest_says_with_the_digest_it_says(tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    found = contents(tmp_path / "out")
    listed = [
        entry for layer in manifest["layers"] for launch in layer["launches"] for entry in launch["cubins"].values()
    ]
    assert {entry["path"] for entry in listed} | {"manifest.json"} == set(found)
    assert [blob_digest(found[entry["path"]]) for entry in listed] == [entry["sha256"] for entry in listed]
    assert found["conv2/sm_90.cubin"] == cubin(1, "sm_90")


def test_the_manifest_says_how_to_launch(tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    [launch] = manifest["layers"][0]["launches"]
    assert (launch["kernel"], launch["block"], launch["shared_bytes"]) == ("conv2d", [32, 1, 1], 4 * 2 * 3 * 6 * 17)
    assert launch["grid"] == [
        {"fixed": 2, "images": None},
        {"fixed": 1, "images": 1},
        {"fixed": 1, "images": None},
    ]
    assert launch["arguments"] == [
        {"name": "input", "type": "float32*"},
        {"name": "output", "type": "float32*"},
        {"name": "images", "type": "int32"},
    ]
    assert manifest["layers"][0]["tensors"]["output"] == {
        "name": "conv1.out",
        "dtype": "float32",
        "layout": "NCHW",
        "shape": ["batch", 4, 8, 5],
    }
    assert list(launch["cubins"]) == ["sm_90", "sm_80"]  # as they were asked for


def test_a_layer_in_parts_has_a_launch_for_each_with_its_own_cubins_and_the_same_arguments(
    tmp_path: Path, store: MemoryStore
) -> None:
    parts = (Part(0, 1), Part(1, 3), Part(3, 4))
    tiling = replace(TILING, group_kernels=1)
    manifest = write_layers(
        tmp_path / "out", store, replace(build(0, "large"), tiling=tiling, parts=parts), build(1, "small")
    )
    validator().validate(manifest)
    large, small = manifest["layers"]
    assert [launch["arguments"] for launch in large["launches"]] == [small["launches"][0]["arguments"]] * 3
    assert [launch["grid"][2] for launch in large["launches"]] == [
        {"fixed": groups, "images": None} for groups in (1, 2, 1)
    ]
    found = contents(tmp_path / "out")
    for number, launch in enumerate(large["launches"]):
        assert list(launch["cubins"]) == ["sm_90", "sm_80"]
        for arch, entry in launch["cubins"].items():
            assert entry["path"] == f"large/{arch}.part{number + 1}.cubin"
            assert found[entry["path"]] == cubin(0, arch, number)
    assert [launch["cubins"]["sm_90"]["path"] for launch in small["launches"]] == ["small/sm_90.cubin"]
    assert len(found) == 1 + 2 * 3 + 2


def test_an_older_bundle_with_parts_is_replaced_whole(tmp_path: Path, store: MemoryStore) -> None:
    halves = replace(build(0, "conv1"), parts=(Part(0, 1), Part(1, 2)))
    write_layers(tmp_path / "out", store, halves)
    write_layers(tmp_path / "out", store, build(0, "conv1"))
    assert set(contents(tmp_path / "out")) == {"manifest.json", "conv1/sm_80.cubin", "conv1/sm_90.cubin"}


def test_the_manifest_says_which_tensors_a_layer_takes_and_what_is_folded_into_it(
    tmp_path: Path, store: MemoryStore
) -> None:
    spec = replace(SPEC, epilogue=(AddResidual(), Clip(low=0.0)))
    layer = replace(build(0, "conv1"), spec=spec, residual="skip", folded=("Add add1", "Relu relu1"))
    manifest = write_layers(tmp_path / "out", store, layer)
    validator().validate(manifest)
    [entry] = manifest["layers"]
    assert entry["folded"] == ["Add add1", "Relu relu1"]
    assert entry["spec"]["epilogue"] == [{"step": "add_residual"}, {"step": "clip", "low": 0.0, "high": None}]
    assert entry["tensors"]["residual"] == {**entry["tensors"]["output"], "name": "skip"}
    [launch] = entry["launches"]
    assert [argument["name"] for argument in launch["arguments"]] == ["input", "output", "residual", "images"]


def described(spec: LayerSpec, tmp_path: Path, store: MemoryStore) -> dict[str, Any]:
    """The manifest's layer of a spec."""
    manifest = write_layers(tmp_path / "out", store, replace(build(0, "layer"), spec=spec, rows=7))
    validator().validate(manifest)
    [layer] = manifest["layers"]
    assert isinstance(layer, dict)
    return layer


def test_a_linear_layer_has_rows_instead_of_images(tmp_path: Path, store: MemoryStore) -> None:
    layer = described(Linear(12, 5, data_type="float16"), tmp_path, store)
    assert layer["tensors"] == {
        "input": {"name": "x", "dtype": "float16", "layout": "NC", "shape": ["rows", 12]},
        "output": {"name": "layer.out", "dtype": "float16", "layout": "NC", "shape": ["rows", 5]},
    }
    assert layer["rows_per_image"] == 7
    assert layer["weights"]["count"] == 60
    [launch] = layer["launches"]
    assert [argument["type"] for argument in launch["arguments"]] == ["float16*", "float16*", "int32"]
    rows_of_a_block = launch["block"][0] * layer["tiling"]["rows"] * 2  # two in each register
    assert launch["grid"][0] == {"fixed": 1, "images": rows_of_a_block}


@pytest.mark.parametrize("shape", [["batch", 12], ["rows", 3, 8, 9], ["rows", 0], [4, 12]])
def test_the_schema_holds_layouts_and_shapes_together(shape: list[Any], tmp_path: Path, store: MemoryStore) -> None:
    layer = described(Linear(12, 5), tmp_path, store)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["layers"] = [layer]
    assert validator().is_valid(manifest)
    layer["tensors"]["input"]["shape"] = shape
    assert not validator().is_valid(manifest)


@pytest.mark.parametrize(
    "argument",
    [
        {"name": "input", "type": "float32*", "offset": 40},
        {"name": "input", "type": "int32"},
        {"name": "images", "type": "float32*"},
        {"name": "weights", "type": "float32*"},
    ],
)
def test_the_schema_knows_pointers_to_whole_tensors_and_the_number_of_images_only(
    argument: dict[str, Any], tmp_path: Path, store: MemoryStore
) -> None:
    manifest = write(tmp_path / "out", store)
    manifest["layers"][0]["launches"][0]["arguments"][0] = argument
    assert not validator().is_valid(manifest)


def test_the_manifest_tells_what_was_skipped_and_why(tmp_path: Path, store: MemoryStore) -> None:
    assert write(tmp_path / "out", store)["skipped"] == [
        {"name": "fc", "operator": "Gemm", "reason": "fully connected layers are not compiled"}
    ]


def test_no_path_of_the_machine_is_in_the_manifest(tmp_path: Path, store: MemoryStore) -> None:
    text = json.dumps(write(tmp_path / "out", store))
    assert "private" not in text
    assert str(tmp_path) not in text


def test_layer_names_cannot_leave_the_folder_or_meet(tmp_path: Path, store: MemoryStore) -> None:
    names = ["../../evil", "/etc/passwd", "a/b", "a:b", "A_B", "manifest.json", "...", "Größe"]
    manifest = write(tmp_path / "deep" / "out", store, *names)
    assert [layer["name"] for layer in manifest["layers"]] == names
    validator().validate(manifest)
    assert len(contents(tmp_path / "deep" / "out")) == 2 * len(names) + 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [
        path.name for path in (tmp_path / "deep" / "out").rglob("*") if path.is_file()
    ]


@given(st.lists(st.text(max_size=120), max_size=12))
def test_safe_names_are_plain_and_differ_on_any_file_system(names: list[str]) -> None:
    safe = safe_names(names)
    assert len({name.lower() for name in safe} | {"manifest.json"}) == len(names) + 1
    assert all(name.isascii() and "/" not in name and name[0] not in ".-" and len(name) < 128 for name in safe)


def test_an_older_bundle_is_replaced_whole(tmp_path: Path, store: MemoryStore) -> None:
    write(tmp_path / "out", store, "conv1", "conv2", "conv3")
    write(tmp_path / "out", store, "conv1", "other")
    assert set(contents(tmp_path / "out")) == {
        "manifest.json",
        *(f"{name}/{arch}.cubin" for name in ("conv1", "other") for arch in ("sm_80", "sm_90")),
    }
    assert not (tmp_path / "out" / "conv3").exists()


def test_an_empty_folder_is_filled(tmp_path: Path, store: MemoryStore) -> None:
    write(tmp_path, store)
    assert len(contents(tmp_path)) == 5


@pytest.mark.parametrize("name", ["notes.txt", "conv1/notes.txt", ".git/config", "manifest.json"])
def test_a_folder_with_anybody_elses_file_is_left_alone(name: str, tmp_path: Path, store: MemoryStore) -> None:
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
    with pytest.raises(UsageError, match=r"mine\.txt"):
        write(tmp_path / "out", store, "new")
    assert contents(tmp_path) == before


def test_a_manifest_that_names_files_elsewhere_deletes_none(tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    (tmp_path / "precious").write_text("mine")
    manifest["layers"][0]["launches"][0]["cubins"]["sm_75"] = {"path": "../precious"}
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    write(tmp_path / "out", store)
    assert (tmp_path / "precious").read_text() == "mine"


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
