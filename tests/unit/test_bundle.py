"""The bundle: complete, and its manifest true to its schema."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codegen.ir.layer_spec import (
    AddResidual,
    Clip,
    Conv2d,
    Gelu,
    HardSigmoid,
    HardSwish,
    LayerSpec,
    Linear,
    Mish,
    Quantize,
    Scale,
    Sigmoid,
    Step,
    Swish,
    Tanh,
    spec_from_json,
)
from codegen.ir.tiling import Part, Tiling
from farm.bundle.reader import Bundle
from farm.bundle.writer import write_bundle
from farm.errors import UsageError
from farm.jobs.model import TilingChoice
from farm.store.contract import blob_digest
from farm.store.memory import MemoryStore
from tests.bundle_samples import (
    JOB,
    LINEAR_TILING,
    SPEC,
    TILING,
    TOOLS,
    build,
    contents,
    cubin,
    result,
    stored_cubins,
    validator,
    write,
    write_layers,
)
from tests.samples import LAUNCH


@pytest.fixture
def store() -> MemoryStore:
    return stored_cubins()


def test_the_manifest_keeps_to_its_schema(tmp_path: Path, store: MemoryStore) -> None:
    validator().validate(write(tmp_path / "out", store))


def test_builds_of_one_layer_are_one_entry_with_launches_for_their_architectures(
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
    assert "tiling" not in layer
    assert [each["archs"] for each in layer["tilings"]] == [["sm_80"], ["sm_90"]]
    paths = [[cubin["path"] for cubin in launch["cubins"].values()] for launch in layer["launches"]]
    assert paths == [["conv1/sm_80.cubin"], ["conv1/sm_90.part1.cubin"], ["conv1/sm_90.part2.cubin"]]


@pytest.mark.parametrize("part", ["toolchain", "layers", "skipped", "schema_version", "sha256"])
def test_the_schema_notices_a_missing_part(part: str, tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    del manifest[part]
    assert not validator().is_valid(manifest)


@pytest.mark.parametrize("version", [1, 11])
def test_a_manifest_of_another_version_is_refused(version: int, tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    (tmp_path / "out" / "manifest.json").write_text(json.dumps({**manifest, "schema_version": version}))
    with pytest.raises(UsageError, match=rf"version {version}, .* reads version 3\. Fetch the bundle again"):
        Bundle(tmp_path / "out")


@pytest.mark.parametrize("path", ["/etc/x.cubin", "../x.cubin", "conv1/../../x.cubin", "x.cubin", ".a/x.cubin"])
def test_the_schema_allows_no_path_out_of_the_bundle(path: str, tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    manifest["layers"][0]["launches"][0]["cubins"]["sm_90"]["path"] = path
    assert not validator().is_valid(manifest)


def test_every_cubin_has_the_path_and_digest_of_the_manifest(tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    found = contents(tmp_path / "out")
    listed = [
        entry for layer in manifest["layers"] for launch in layer["launches"] for entry in launch["cubins"].values()
    ]
    assert {entry["path"] for entry in listed} | {"manifest.json", "provenance.json"} == set(found)
    assert [blob_digest(found[entry["path"]]) for entry in listed] == [entry["sha256"] for entry in listed]
    assert found["conv2/sm_90.cubin"] == cubin(1, "sm_90")


def test_the_manifest_says_how_to_launch(tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    [launch] = manifest["layers"][0]["launches"]
    assert (launch["kernel"], launch["block"], launch["shared_bytes"]) == ("conv2d", [32, 1, 1], 4 * 2 * 3 * 6 * 17)
    assert launch["grid"] == [{"fixed": 2, "images": None}, {"fixed": 1, "images": 1}, {"fixed": 1, "images": None}]
    assert launch["arguments"] == [
        {"name": "input", "type": "float32*"},
        {"name": "output", "type": "float32*"},
        {"name": "images", "type": "int32"},
        {"name": "output_step", "type": "int32", "contiguous": 4 * 8 * 5},
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
    tiling = replace(TILING, group_outputs=1)
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
    assert len(found) == 2 + 2 * 3 + 2


def test_a_previous_bundle_with_parts_is_replaced_whole(tmp_path: Path, store: MemoryStore) -> None:
    halves = replace(build(0, "conv1"), parts=(Part(0, 1), Part(1, 2)))
    write_layers(tmp_path / "out", store, halves)
    write_layers(tmp_path / "out", store, build(0, "conv1"))
    assert set(contents(tmp_path / "out")) == {
        "manifest.json",
        "provenance.json",
        "conv1/sm_80.cubin",
        "conv1/sm_90.cubin",
    }


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
    assert [argument["name"] for argument in launch["arguments"]] == [
        "input",
        "output",
        "residual",
        "images",
        "output_step",
    ]


def test_a_layer_with_gates_has_their_tensor_and_argument(tmp_path: Path, store: MemoryStore) -> None:
    spec = Conv2d(6, 8, 8, 4, 1, 1, gated=True)
    layer = replace(build(0, "conv1"), spec=spec, gate="gates", folded=("Mul mul1",))
    manifest = write_layers(tmp_path / "out", store, layer)
    validator().validate(manifest)
    [entry] = manifest["layers"]
    assert entry["tensors"]["gate"] == {**entry["tensors"]["input"], "name": "gates", "shape": ["batch", 6, 1, 1]}
    [launch] = entry["launches"]
    assert [each["name"] for each in launch["arguments"]] == ["input", "output", "gate", "images", "output_step"]
    assert Bundle(tmp_path / "out").layers["conv1"].spec == spec


def test_a_layer_that_reads_from_a_larger_tensor_has_its_input_step(tmp_path: Path, store: MemoryStore) -> None:
    tiling = Tiling("conv2d", 8, 8, 1, 4, 6, 2, images=4)
    layer = replace(build(0, "conv1"), spec=Conv2d(6, 8, 8, 4, 1, 1, bounded=True), tiling=tiling)
    manifest = write_layers(tmp_path / "out", store, layer)
    validator().validate(manifest)
    [launch] = manifest["layers"][0]["launches"]
    assert launch["arguments"][-1] == {"name": "input_step", "type": "int32", "contiguous": 6 * 8 * 8}
    assert Bundle(tmp_path / "out").layers["conv1"].most_input_step == (2**31 - 1) // 4


STEPS: list[Step] = [
    Sigmoid(),
    HardSigmoid(0.2, 0.5),
    HardSwish(0.25, 0.5),
    Scale(0.25, 0.5),
    Quantize(0.25, -128, 127),
    Swish(1.702),
    Gelu(),
    Gelu("tanh"),
    Tanh(),
    Mish(),
]


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_activations_are_in_the_manifest(step: Step, tmp_path: Path, store: MemoryStore) -> None:
    spec = Linear(12, 5, epilogue=(Clip(high=6.0), step))
    manifest = write_layers(tmp_path / "out", store, replace(build(0, "fc1"), spec=spec, tiling=LINEAR_TILING))
    validator().validate(manifest)
    assert spec_from_json(manifest["layers"][0]["spec"]) == spec


def test_a_layer_that_writes_into_a_larger_tensor_has_its_output_step(tmp_path: Path, store: MemoryStore) -> None:
    placed = replace(LAUNCH, arguments=(*LAUNCH.arguments, "output_step"), output_step=4 * 8 * 5)
    results = [result(0, arch, launch=placed) for arch in JOB.options.archs]
    path = write_bundle(tmp_path / "out", JOB, [build(0, "conv1")], results, TOOLS, store)
    manifest = json.loads(path.read_text())
    validator().validate(manifest)
    assert Bundle(path.parent).layers["conv1"].cubins[0].launch == placed
    del manifest["layers"][0]["launches"][0]["arguments"][-1]["contiguous"]
    assert not validator().is_valid(manifest)


@pytest.mark.parametrize("step", [{"step": "swish"}, {"step": "gelu", "approximate": "a bit"}, {"step": "softplus"}])
def test_the_schema_takes_no_step_that_is_not_whole(step: dict[str, Any], tmp_path: Path, store: MemoryStore) -> None:
    manifest = write(tmp_path / "out", store)
    manifest["layers"][0]["spec"]["epilogue"] = [step]
    assert not validator().is_valid(manifest)


def described(spec: LayerSpec, tmp_path: Path, store: MemoryStore, rows: int | None = 7) -> dict[str, Any]:
    """The manifest's layer of a spec."""
    tiling = LINEAR_TILING if isinstance(spec, Linear) else TILING
    manifest = write_layers(tmp_path / "out", store, replace(build(0, "layer"), spec=spec, tiling=tiling, rows=rows))
    validator().validate(manifest)
    [layer] = manifest["layers"]
    assert isinstance(layer, dict)
    return layer


def test_unknown_rows_of_a_linear_layer_are_null(tmp_path: Path, store: MemoryStore) -> None:
    assert described(Linear(12, 5), tmp_path, store, rows=None)["rows_per_image"] is None


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
        {
            "name": "fc",
            "operator": "Gemm",
            "reason": "fully connected layers are not compiled",
            "weights": None,
            "multiply_adds": None,
        }
    ]


def test_no_path_of_the_machine_is_in_the_manifest(tmp_path: Path, store: MemoryStore) -> None:
    text = json.dumps(write(tmp_path / "out", store))
    assert "private" not in text
    assert str(tmp_path) not in text


def test_architectures_of_one_layer_that_are_launched_differently_have_launches_of_their_own(
    tmp_path: Path, store: MemoryStore
) -> None:
    other = replace(LAUNCH, block=(224, 1, 1), shared_bytes=11_520)
    results = [result(0, "sm_80", launch=other), result(0, "sm_90")]
    manifest = json.loads(write_bundle(tmp_path / "out", JOB, [build(0, "conv1")], results, TOOLS, store).read_text())
    validator().validate(manifest)
    [layer] = manifest["layers"]
    threads = [(list(each["cubins"]), each["block"][0]) for each in layer["launches"]]
    assert threads == [(["sm_90"], 96), (["sm_80"], 224)]
