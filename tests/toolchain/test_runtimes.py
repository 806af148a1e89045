"""The runtimes without a framework, in Python and in C, launch what the manifest says: on a driver that is played."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import onnx
import pytest

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.launch import MOST_IMAGES, NUMBERS
from codegen.model_zoo import lenet5, write_network
from farm.bundle.reader import Bundle
from farm.bundle.row_groups import group_for, row_groups
from farm.cuda.even_blocks import SharedMemory, even_bytes
from farm.runtime.plan import Argument, KernelStep, Place, Rows
from farm.runtime.plan_text import plan_of, with_end
from tests.toolchain.played_bundle import played_bundle
from tests.toolchain.played_runtimes import LANGUAGES, Launched, Played, by_first_sight
from tests.unit.onnx_models import info, model, node, save, squeeze_and_excitation, tensor, values
from tests.unit.test_onnx_input_bounds import CONV, NORM, RELU, dense_net


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeNet-5 as a folder, and beside it as one file, its pools not in its layers."""
    folder = tmp_path_factory.mktemp("lenet")
    write_network(folder / "net.onnx", lenet5(0.9, 0))
    checkpoint = read_checkpoint(folder / "net.onnx")
    apart = replace(checkpoint, layers=tuple(replace(layer, pool=None) for layer in checkpoint.layers))
    played_bundle(folder / "lenet.farm", folder / "net.onnx", apart)
    return played_bundle(folder / "lenet", folder / "net.onnx", apart)


STUB = SharedMemory(132, 233472, 232448, 1024)
"""The GPU of stub_libcuda.c."""


def wanted(folder: Path, arch: str, images: int, cluster: int = 1) -> list[Launched]:
    """By the manifest, and for what is beside the layers by the plan."""
    layers = {layer["name"]: layer for layer in json.loads((folder / "manifest.json").read_text())["layers"]}
    return by_first_sight(_wanted(folder, layers, arch, images, cluster))


def _wanted(
    folder: Path, layers: dict[str, Any], arch: str, images: int, cluster: int
) -> Iterator[tuple[str, Iterable[int], Sequence[str]]]:
    for step in plan_of(Bundle(folder)).steps:
        rows = step.rows * images
        if isinstance(step, KernelStep):
            grid = [size.fixed * (-(-rows // size.images) if size.images else 1) for size in step.grid]
            yield step.kernel, [*grid, step.threads, 1, 1, 0], [_written(each, rows) for each in step.arguments]
            continue
        launches = [each for each in layers[step.layer]["launches"] if arch in each["cubins"]]
        limits = {each.get("most_rows", MOST_IMAGES) for each in launches}
        limit = min(each for each in limits if each >= rows)
        for launch in launches:
            if launch.get("most_rows", MOST_IMAGES) == limit:
                sizes = [(size["fixed"], size["images"]) for size in launch["grid"]]
                grid = [fixed * (-(-rows // each) if each else 1) for fixed, each in sizes]
                tensors = [each["name"] for each in launch["arguments"] if each["name"] not in NUMBERS]
                given = dict(zip(tensors, (f"p{place}" for place in step.places), strict=True))
                given |= {"images": f"d{rows}"}
                arguments = [
                    f"d{each['contiguous']}" if "contiguous" in each else given[each["name"]]
                    for each in launch["arguments"]
                ]
                name, needed = launch["kernel"], launch["shared_bytes"]
                if launch.get("waits"):
                    name += "+early"
                    needed = even_bytes(needed, prod(grid), cluster, STUB) if rows == 1 else needed
                yield name, [*grid, *launch["block"], needed], arguments


def _written(argument: Argument, rows: int) -> str:
    match argument:
        case Place():
            return f"p{argument}"
        case Rows():
            return f"d{rows}"
        case float():
            return f"f{struct.pack('>f', argument).hex()}"
        case _:
            return f"d{argument}"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("gpu", "arch"), [(90, "sm_90"), (86, "sm_80")])
@pytest.mark.parametrize("images", [1, 5])
def test_a_network_is_launched_as_the_manifest_says(
    played: Played, lenet: Path, language: str, gpu: int, arch: str, images: int
) -> None:
    assert played.run(language, lenet, images, arch=gpu) == ""
    assert played.launches() == wanted(lenet, arch, images)
    assert len(played.launches()) == {"sm_80": 7, "sm_90": 6}[arch]  # fc1 has two parts, or clusters


@pytest.fixture(scope="module")
def lenet_of_batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeNet-5 for three batch sizes."""
    folder = tmp_path_factory.mktemp("batches")
    write_network(folder / "net.onnx", lenet5(0.9, 0))
    return played_bundle(folder / "lenet", folder / "net.onnx", batches=(1, 8, 64))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("gpu", "arch"), [(90, "sm_90"), (86, "sm_80")])
@pytest.mark.parametrize("images", [2, 3, 22, 23])
def test_a_network_for_several_batch_sizes_is_launched_as_the_manifest_says(
    played: Played, lenet_of_batches: Path, language: str, gpu: int, arch: str, images: int
) -> None:
    assert played.run(language, lenet_of_batches, images, arch=gpu) == ""
    assert played.launches() == wanted(lenet_of_batches, arch, images)


def test_c_chooses_kernels_by_the_number_of_images_as_python_does(played: Played, lenet_of_batches: Path) -> None:
    layers = [row_groups(each.cubins_for("sm_90")) for each in Bundle(lenet_of_batches).layers.values()]
    assert [len(groups) for groups in layers] == [3, 3, 3, 2]
    names = {each.launch.kernel for groups in layers for group in groups for each in group}
    for images in range(1, 201):
        assert played.run("c", lenet_of_batches, images) == ""
        launches = [
            (each.launch, each.launch.grid_at(images)) for groups in layers for each in group_for(groups, images)
        ]
        said = [each.sizes[:6] for each in played.launches() if each.kernel.removesuffix("+early") in names]
        assert said == [(*grid, *launch.block) for launch, grid in launches]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_blocks_of_early_kernels_ask_for_shared_memory_that_keeps_them_apart(
    played: Played, lenet_of_batches: Path, language: str, cluster: int
) -> None:
    assert played.run(language, lenet_of_batches, 1, cluster=cluster) == ""
    assert played.launches() == wanted(lenet_of_batches, "sm_90", 1, cluster)
    early = [each for each in played.launches() if each.kernel.endswith("+early")]
    assert len(early) == 4
    asked = {line[2] for line in played.lines() if line[:2] == ["attribute", "8"]}
    assert {str(each.sizes[6]) for each in early} == asked


@pytest.mark.parametrize("language", LANGUAGES)
def test_with_several_images_early_kernels_ask_for_what_they_need(
    played: Played, tmp_path: Path, language: str
) -> None:
    write_network(tmp_path / "net.onnx", lenet5(0.9, 0))
    folder = played_bundle(tmp_path / "lenet", tmp_path / "net.onnx", batches=(1,))
    assert played.run(language, folder, 2) == ""
    early = {each.kernel.removesuffix("+early"): each.sizes[6] for each in played.launches() if "+early" in each.kernel}
    layers = json.loads((folder / "manifest.json").read_text())["layers"]
    launches = [launch for layer in layers for launch in layer["launches"] if launch.get("waits")]
    assert len(early) == len({launch["kernel"] for launch in launches})
    assert set(early.values()) <= {launch["shared_bytes"] for launch in launches}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_gate_is_launched_as_the_manifest_says(played: Played, tmp_path: Path, language: str) -> None:
    folder = played_bundle(tmp_path / "bundle", squeeze_and_excitation(tmp_path))
    layers = json.loads((folder / "manifest.json").read_text())["layers"]
    names = [each["name"] for each in layers[-1]["launches"][0]["arguments"]]
    assert names == ["input", "output", "residual", "gate", "images", "output_step"]
    assert played.run(language, folder, 3) == ""
    assert played.launches() == wanted(folder, "sm_90", 3)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_layer_with_a_normalisation_before_it_is_launched_as_the_manifest_says(
    played: Played, tmp_path: Path, language: str
) -> None:
    proto = dense_net(NORM, RELU, CONV)
    del proto.graph.input[1]
    folder = played_bundle(tmp_path / "bundle", save(tmp_path, proto))
    [layer] = json.loads((folder / "manifest.json").read_text())["layers"]
    names = [each["name"] for each in layer["launches"][0]["arguments"]]
    assert names == ["input", "output", "images", "output_step", "input_step"]
    assert played.run(language, folder, 3) == ""
    assert played.launches() == wanted(folder, "sm_90", 3)


def test_a_layer_alone_wants_its_gate_in_c(played: Played, tmp_path: Path) -> None:
    nodes = [node("Mul", "x g", "p"), node("Conv", "p w", "y", "conv")]
    inputs = [info("x", ("N", 3, 2, 2)), info("g", ("N", 3, 1, 1))]
    proto = model(nodes, [tensor("w", values(2, 3, 1, 1))], inputs=inputs)
    folder = played_bundle(tmp_path / "bundle", save(tmp_path, proto))
    assert played.run("c", folder, 4, "conv") == "layer conv takes a gate"


@pytest.mark.parametrize("language", LANGUAGES)
def test_one_file_is_launched_like_the_folder(played: Played, lenet: Path, language: str) -> None:
    assert played.run(language, lenet.with_suffix(".farm"), 3) == ""
    assert played.launches() == wanted(lenet, "sm_90", 3)


@pytest.mark.parametrize("language", LANGUAGES)
def test_everything_on_the_gpu_is_given_back(played: Played, lenet: Path, language: str) -> None:
    assert played.run(language, lenet, 2) == ""
    lines = played.lines()
    assert sorted(line[1] for line in lines if line[0] == "alloc") == sorted(
        line[1] for line in lines if line[0] == "free"
    )
    assert [line[0] for line in lines].count("unload") == 4 + 1  # the layers' cubins, and glue.ptx


@pytest.mark.parametrize("language", LANGUAGES)
def test_parts_run_beside_each_other_and_what_follows_waits(played: Played, lenet: Path, language: str) -> None:
    assert played.run(language, lenet, 1, arch=86) == ""
    enqueued = [line for line in played.lines() if line[0] in ("launch", "record", "wait")]
    order = [line[0] for line in enqueued]
    assert order == [*["launch"] * 4, "record", "wait", *["launch"] * 2, "record", "wait", "launch"]
    (begin, end), (other, joined) = ([line[1:] for line in enqueued if line[0] == word] for word in ("record", "wait"))
    streams = [line[9] for line in enqueued if line[0] == "launch"]
    assert begin == [other[1], "0"]  # of the stream that is given, waited for by the other
    assert end[1] == other[0] == streams[5]
    assert joined == ["0", end[0]]
    assert streams == ["0"] * 5 + [streams[5], "0"]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("shared_bytes", "asked"), [(48 * 1024, []), (99 * 1024, [["8", str(99 * 1024)]])])
def test_more_shared_memory_than_every_kernel_has_is_asked_for(
    played: Played, tmp_path: Path, language: str, shared_bytes: int, asked: list[list[str]]
) -> None:
    nodes = [node("Conv", "x w", "y", "conv")]
    proto = model(nodes, [tensor("w", values(2, 3, 1, 1))], inputs=[info("x", ("N", 3, 2, 2))])
    folder = played_bundle(tmp_path / "bundle", save(tmp_path, proto), shared_bytes=shared_bytes)
    assert played.run(language, folder, 1) == ""
    assert [line[1:] for line in played.lines() if line[0] == "attribute"] == asked
    assert played.launches() == wanted(folder, "sm_90", 1)


def relu_network(folder: Path, **more: Any) -> Path:
    """A convolution of one pixel, then what is given."""
    nodes = [node("Conv", "x w", "a", "conv"), node("Softmax", "a", "y", **more)]
    proto = model(nodes, [tensor("w", values(2, 3, 1, 1))], inputs=[info("x", ("N", 3, 2, 2))])
    return played_bundle(folder / "bundle", save(folder, proto))


@pytest.mark.parametrize("language", LANGUAGES)
def test_more_images_than_a_launch_takes_are_run_in_turns(played: Played, tmp_path: Path, language: str) -> None:
    folder = relu_network(tmp_path, axis=1)
    [layer] = json.loads((folder / "manifest.json").read_text())["layers"]
    limit = layer["launches"][0]["images_limit"] // 16 * 16
    assert played.run(language, folder, limit + 5) == ""
    images = [line[-2:] for line in played.lines() if line[0] == "launch" and line[1] == layer["launches"][0]["kernel"]]
    assert [f"d{limit}" in line for line in images] == [True, False]
    assert ["d5" in line for line in images] == [False, True]


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_not_run_is_named(played: Played, tmp_path: Path, language: str) -> None:
    folder = relu_network(tmp_path, axis=0)
    assert f"{folder}: the runtime does not run Softmax y (along the images)" in played.run(language, folder, 1)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("gpu", [120, 87])
def test_a_gpu_without_code_is_told_what_to_compile(played: Played, lenet: Path, language: str, gpu: int) -> None:
    """The bundle has sm_80, which an Orin (sm_87) does not run."""
    assert f"compile the model with --arch sm_{gpu} and fetch it again" in played.run(language, lenet, 1, arch=gpu)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_the_driver_refuses_is_named(played: Played, lenet: Path, lenet_of_batches: Path, language: str) -> None:
    said = played.run(language, lenet, 1, fail="cuModuleLoadData")
    assert "cuModuleLoadData" in said
    assert "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in said
    assert "cuLaunchKernel" in played.run(language, lenet, 1, fail="cuLaunchKernel")
    for failing in ("cuLaunchKernelEx", "cuFuncGetAttribute"):
        assert failing in played.run(language, lenet_of_batches, 1, fail=failing)


@pytest.mark.parametrize("trouble", [{"arch": 120}, {"fail": "cuModuleLoadData"}, {"fail": "cuMemAlloc_v2"}])
def test_what_cannot_be_loaded_leaves_nothing_on_the_gpu(played: Played, lenet: Path, trouble: dict[str, Any]) -> None:
    assert played.run("python", lenet, 1, **trouble)
    lines = [line[0] for line in played.lines()]
    assert lines.count("release") == 1
    assert lines.count("unload") == (5 if trouble == {"fail": "cuMemAlloc_v2"} else 0)


def test_without_a_gpu_loading_says_so(played: Played, lenet: Path) -> None:
    assert played.run("python", lenet, 1, arch=0) == "there is no GPU here: check the driver with nvidia-smi"


def test_a_layer_runs_alone_in_c(played: Played, lenet: Path) -> None:
    assert played.run("c", lenet, 4, "conv2") == ""
    [launch] = played.launches()
    manifest = json.loads((lenet / "manifest.json").read_text())["layers"][1]["launches"]
    [entry] = [each for each in manifest if "sm_90" in each["cubins"]]
    assert (launch.kernel, list(launch.sizes[3:])) == (entry["kernel"], [*entry["block"], entry["shared_bytes"]])
    assert launch.arguments[:2] == ("p0", "p1")
    assert "has no layer conv9" in played.run("c", lenet, 4, "conv9")


@pytest.mark.parametrize("cut", [0, 100, 2000])
def test_a_damaged_file_is_refused_in_c(played: Played, lenet: Path, tmp_path: Path, cut: int) -> None:
    data = lenet.with_suffix(".farm").read_bytes()
    (tmp_path / "cut.farm").write_bytes(data[:cut] + data[cut + 1 :] if cut == 2000 else data[:cut])
    said = played.run("c", tmp_path / "cut.farm", 1)
    assert said
    assert "fetch" in said
    assert "is not a bundle" in played.run("c", tmp_path / "missing", 1)


def test_files_of_an_archive_that_overlap_are_refused_in_c(played: Played, lenet: Path, tmp_path: Path) -> None:
    data = bytearray(lenet.with_suffix(".farm").read_bytes())
    entry = data.index(b"network.plan", data.index(b"PK\1\2")) - 46
    for place in (entry + 20, entry + 24):
        size = int.from_bytes(data[place : place + 4], "little")
        data[place : place + 4] = (size + 1).to_bytes(4, "little")
    (tmp_path / "bundle.farm").write_bytes(data)
    assert "its directory of files is damaged" in played.run("c", tmp_path / "bundle.farm", 1)


def test_code_with_more_parameters_than_the_plan_says_gets_zeros_in_c(played: Played, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "y", "conv")]
    proto = model(nodes, [tensor("w", values(2, 3, 1, 1))], inputs=[info("x", ("N", 3, 2, 2))])
    folder = played_bundle(tmp_path / "bundle", save(tmp_path, proto), code=f"fake conv2d {'i' * 200} ".encode())
    assert played.run("c", folder, 3) == ""
    [launch] = [line for line in played.lines() if line[0] == "launch"]
    assert launch[-196:] == ["p0"] * 196


def test_a_network_of_more_launches_than_any_has_is_refused_in_c(played: Played, lenet: Path, tmp_path: Path) -> None:
    """65 kernels of one layer, which runs 16,384 times."""
    shutil.copytree(lenet, tmp_path / "bundle")
    text = tmp_path / "bundle" / "network.plan"
    of_kind: dict[str, list[str]] = {}
    for line in text.read_text().splitlines()[1:-1]:
        of_kind.setdefault(line.split(" ")[0], []).append(line)
    kernel = of_kind["kernel"][-1].split(" ")
    _, size, digest, path = of_kind["file"][int(kernel[3])].split(" ")
    for number in range(64):
        (tmp_path / "bundle" / f"part{number}").write_bytes((tmp_path / "bundle" / path).read_bytes())
        kernel[3] = str(len(of_kind["file"]))
        of_kind["file"].append(f"file {size} {digest} part{number}")
        of_kind["kernel"].append(" ".join(kernel))
    of_kind.pop("launch")
    of_kind["run"] = of_kind["run"][-1:] * 2**14
    text.write_bytes(with_end([line for lines in of_kind.values() for line in lines]))
    assert "its network has 1064960 launches" in played.run("c", tmp_path / "bundle", 1)


def test_a_network_of_one_image_is_run_with_one(played: Played, tmp_path: Path) -> None:
    proto = onnx.load(save(tmp_path, model([node("Conv", "x w", "y", "conv")], [tensor("w", values(2, 3, 1, 1))])))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    folder = played_bundle(tmp_path / "bundle", save(tmp_path, proto))
    assert played.run("c", folder, 1) == ""
    assert "batch size at 1" in played.run("python", folder, 2)
    assert "takes 1 images" in played.run("c", folder, 2)
