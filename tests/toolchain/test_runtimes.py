"""The runtimes without a framework, in Python and in C, launch what the manifest says: on a driver that is played."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import farm.runtime
from codegen.assemble import assemble
from codegen.launch import NUMBERS
from codegen.machine.elf import CubinFile
from codegen.networks import lenet5, write_network
from codegen.toolchain import find_toolchain
from farm.gpu.code_address import with_address
from farm.gpu.fetching import Gpu, layer_run, planned_fetches
from farm.runtime.bundle import layers_of
from farm.runtime.plan import Argument, KernelStep, Place, Rows, read_plan
from tests.house.tree import ROOT
from tests.toolchain.played_bundle import played_bundle
from tests.unit.onnx_models import info, model, node, save, squeeze_and_excitation, tensor, values

HERE = Path(__file__).parent
C = Path(farm.runtime.__file__).parent / "c"
FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror")
LANGUAGES = ("python", "c")

IN_PYTHON = """
import sys
from math import prod

import numpy as np

from farm.runtime import load

bundle, images, source, target = sys.argv[1:]
try:
    with load(bundle) as net:
        shape = net.inputs[0].shape_of(int(images))
        net(np.fromfile(source, net.inputs[0].held_in, prod(shape)).reshape(shape)).tofile(target)
except Exception as error:
    sys.exit(str(error))
"""


ADDRESSED = """
#include "farm.c"

int main(int count, char **arguments) {
    static char data[1 << 20];
    size_t bytes, made_bytes, code_bytes;
    FILE *file = fopen(arguments[1], "rb");
    char *made;
    (void)count;
    bytes = fread(data, 1, sizeof data, file);
    fclose(file);
    made = with_address(data, bytes, &made_bytes, &code_bytes);
    if (!made) return 3;
    file = fopen(arguments[2], "wb");
    fwrite(made, 1, made_bytes, file);
    fwrite(&code_bytes, sizeof code_bytes, 1, file);
    fclose(file);
    free(made);
    return 0;
}
"""


@dataclass(frozen=True)
class Launched:
    """A launch, its pointers numbered as they are seen first."""

    kernel: str
    sizes: tuple[int, ...]
    """Grid, block, shared bytes."""
    arguments: tuple[str, ...]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the driver that is played, and the program that runs bundles."""
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libcuda.so.1"
    subprocess.run(["gcc", "-std=gnu11", "-shared", "-fPIC", HERE / "stub_libcuda.c", "-o", library], check=True)
    sources = [HERE / "runtime_program.c", C / "farm.c"]
    subprocess.run(["gcc", *FLAGS, f"-I{C}", *sources, library, "-o", folder / "program"], check=True)
    (folder / "program.py").write_text(IN_PYTHON)
    return folder


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeNet-5 as a folder, and beside it as one file."""
    folder = tmp_path_factory.mktemp("lenet")
    write_network(folder / "net.onnx", lenet5(0.9, 0))
    played_bundle(folder / "lenet.farm", folder / "net.onnx")
    return played_bundle(folder / "lenet", folder / "net.onnx")


class Played:
    """Runs bundles on the driver that is played."""

    def __init__(self, driver: Path, folder: Path) -> None:
        self._driver = driver
        self._folder = folder

    def run(
        self,
        language: str,
        bundle: Path,
        images: int,
        *more: str,
        arch: int = 90,
        fail: str = "",
        recorded: bool = False,
    ) -> str:
        """What went wrong, empty if nothing did."""
        (self._folder / "log").write_text("")
        np.zeros(1 << 21, np.float32).tofile(self._folder / "x")
        played = {"STUB_LOG": str(self._folder / "log"), "STUB_ARCH": str(arch), "STUB_FAIL": fail}
        if recorded:
            played["STUB_RECORDED"] = "1"
        environment = {**os.environ, **played, "LD_LIBRARY_PATH": str(self._driver), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, self._driver / "program.py"] if language == "python" else [self._driver / "program"]
        arguments = [bundle, str(images), self._folder / "x", self._folder / "y", *more]
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True)
        assert (done.returncode == 0) == (not done.stderr)
        return done.stderr.strip()

    def lines(self) -> list[list[str]]:
        return [line.split(" ") for line in (self._folder / "log").read_text().splitlines()]

    def launches(self) -> list[Launched]:
        lines = [line[1:] for line in self.lines() if line[0] == "launch"]
        return by_first_sight((line[0], line[1:8], line[9:]) for line in lines)


@pytest.fixture
def played(driver: Path, tmp_path: Path) -> Played:
    return Played(driver, tmp_path)


def by_first_sight(launches: Iterable[tuple[str, Iterable[Any], Sequence[str]]]) -> list[Launched]:
    seen: dict[str, str] = {}
    return [
        Launched(
            kernel,
            tuple(map(int, sizes)),
            tuple(seen.setdefault(each, f"p{len(seen)}") if each.startswith("p") else each for each in arguments),
        )
        for kernel, sizes, arguments in launches
    ]


def wanted(folder: Path, arch: str, images: int) -> list[Launched]:
    """By the manifest, and for what is beside the layers by the plan."""
    layers = {layer["name"]: layer for layer in json.loads((folder / "manifest.json").read_text())["layers"]}
    return by_first_sight(_wanted(folder, layers, arch, images))


def _wanted(
    folder: Path, layers: dict[str, Any], arch: str, images: int
) -> Iterator[tuple[str, Iterable[int], Sequence[str]]]:
    for step in read_plan((folder / "network.plan").read_text()).steps:
        rows = step.rows * images
        if isinstance(step, KernelStep):
            grid = [size.fixed * (-(-rows // size.images) if size.images else 1) for size in step.grid]
            yield step.kernel, [*grid, step.threads, 1, 1, 0], [_written(each, rows) for each in step.arguments]
            continue
        for launch in layers[step.layer]["launches"]:
            if arch in launch["cubins"]:
                sizes = [(size["fixed"], size["images"]) for size in launch["grid"]]
                grid = [fixed * (-(-rows // each) if each else 1) for fixed, each in sizes]
                tensors = [each["name"] for each in launch["arguments"] if each["name"] not in NUMBERS]
                given = dict(zip(tensors, (f"p{place}" for place in step.places), strict=True))
                given |= {"images": f"d{rows}"}
                arguments = [
                    f"d{each['contiguous']}" if each["name"] == "output_step" else given[each["name"]]
                    for each in launch["arguments"]
                ]
                yield launch["kernel"], [*grid, *launch["block"], launch["shared_bytes"]], arguments


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


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_gate_is_launched_as_the_manifest_says(played: Played, tmp_path: Path, language: str) -> None:
    folder = played_bundle(tmp_path / "bundle", squeeze_and_excitation(tmp_path))
    layers = json.loads((folder / "manifest.json").read_text())["layers"]
    names = [each["name"] for each in layers[-1]["launches"][0]["arguments"]]
    assert names == ["input", "output", "residual", "gate", "images", "output_step"]
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
    assert [line[0] for line in lines].count("unload") == 4 + 1  # the layers' cubins, and rest.ptx


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


IMAGES_AT_ONCE = 64
CODE_BYTES = 400_000


@pytest.fixture(scope="module")
def cubin() -> bytes:
    """A real one, of a kernel of the right name, and as long as those of large layers."""
    ptx = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry conv2d() { ret; }\n"
    return assemble(ptx, "sm_80", find_toolchain()).data.ljust(CODE_BYTES, b"\0")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory, cubin: bytes) -> Path:
    """Six convolutions one after another, a Softmax in between."""
    folder = tmp_path_factory.mktemp("deep")
    nodes = [node("Conv", f"t{i} w{i}", f"t{i + 1}", f"conv{i}", pads=[1] * 4) for i in range(6)]
    nodes[2].input[0] = "s"
    nodes.insert(2, node("Softmax", "t2", "s", axis=1))
    weights = [tensor(f"w{i}", values(16, 16, 3, 3)) for i in range(6)]
    proto = model(nodes, weights, inputs=[info("t0", ("N", 16, 28, 28))], output="t6")
    return played_bundle(folder / "deep", save(folder, proto), code=cubin)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_graph_fetches_code_by_its_address_as_planned(
    played: Played, deep: Path, cubin: bytes, language: str
) -> None:
    assert played.run(language, deep, IMAGES_AT_ONCE, arch=86, recorded=True) == ""
    layers = layers_of(json.loads((deep / "manifest.json").read_text())["layers"]).values()
    cubins = [layer.cubins_for("sm_86")[0] for layer in layers]
    gpu, moved_bytes = Gpu(132, 60_000_000), 2 * 4 * 16 * 28 * 28
    runs = [layer_run([(each.launch, each.bytes)], moved_bytes, IMAGES_AT_ONCE, gpu) for each in cubins]
    plan = planned_fetches(runs, gpu.l2_bytes)
    assert sum(map(len, plan)) == 5
    order = [each for begun in plan for each in (*["fetch_code"] * len(begun), "conv2d")]
    enqueued = [line[1:] for line in played.lines() if line[0] == "launch"]
    assert [line[0] for line in enqueued if line[0] in ("fetch_code", "conv2d")] == order
    fetches = [line for line in enqueued if line[0] == "fetch_code"]
    assert {tuple(line[1:8]) for line in fetches} == {("8", "1", "1", "32", "1", "1", "0")}
    assert len({line[9] for line in fetches}) == 5  # each another address
    assert {line[10] for line in fetches} == {f"p{CubinFile.read(cubin).code.size:x}"}
    [side] = {line[8] for line in fetches}
    assert side != "0"
    last = [line for line in played.lines() if line[0] in ("launch", "record", "wait")][-2:]
    assert (last[0][0], last[0][2], last[1]) == ("record", side, ["wait", "0", last[0][1]])


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_is_fetched_by_launches_that_are_not_recorded_or_of_code_that_stays(
    played: Played, deep: Path, language: str
) -> None:
    for images, recorded in ((IMAGES_AT_ONCE, False), (1, True)):
        assert played.run(language, deep, images, arch=86, recorded=recorded) == ""
        assert len(played.launches()) == 7
        assert not [line for line in played.lines() if line[0] == "wait"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_driver_that_refuses_a_variable_or_the_fetching_kernel_is_asked_for_less(
    played: Played, deep: Path, language: str
) -> None:
    for refused in ("variable", "fetcher"):
        assert played.run(language, deep, IMAGES_AT_ONCE, arch=86, recorded=True, fail=refused) == ""
        assert len(played.launches()) == 7


def test_c_adds_the_same_variable_to_a_cubin(driver: Path, tmp_path: Path, cubin: bytes) -> None:
    source = tmp_path / "addressed.c"
    source.write_text(ADDRESSED)
    command = ["gcc", *FLAGS, f"-I{C}", source, driver / "libcuda.so.1", "-o", tmp_path / "addressed"]
    subprocess.run(command, check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    cut = [cubin[:size] for size in (0, 4, 63, 64, 1000, cubin.rindex(b"\1", 0, 5000))]
    for data in (cubin, cubin.rstrip(b"\0"), b"PTX", *cut):
        (tmp_path / "in").write_bytes(data)
        done = subprocess.run([tmp_path / "addressed", tmp_path / "in", tmp_path / "out"], env=environment)
        found = with_address(data)
        assert done.returncode == (0 if found else 3)
        if found:
            assert (tmp_path / "out").read_bytes() == found[0] + found[1].to_bytes(8, "little")


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
def test_a_gpu_without_code_is_told_what_to_compile(played: Played, lenet: Path, language: str) -> None:
    assert "compile the model with --arch sm_120 and fetch it again" in played.run(language, lenet, 1, arch=120)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_the_driver_refuses_is_named(played: Played, lenet: Path, language: str) -> None:
    said = played.run(language, lenet, 1, fail="cuModuleLoadData")
    assert "cuModuleLoadData" in said
    assert "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in said
    assert "cuLaunchKernel" in played.run(language, lenet, 1, fail="cuLaunchKernel")


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
    assert "is no bundle" in played.run("c", tmp_path / "missing", 1)


def test_a_network_of_one_image_is_run_with_one(played: Played, tmp_path: Path) -> None:
    proto = onnx.load(save(tmp_path, model([node("Conv", "x w", "y", "conv")], [tensor("w", values(2, 3, 1, 1))])))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    folder = played_bundle(tmp_path / "bundle", save(tmp_path, proto))
    assert played.run("c", folder, 1) == ""
    assert "takes 1 images" in played.run("python", folder, 2)
    assert "takes 1 images" in played.run("c", folder, 2)
