"""A bundle as an AOTInductor package, which calls compiled layers on a driver that is played."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import onnx
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch._subclasses.fake_tensor import FakeTensorMode

from codegen.errors import DeviceError
from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from farm.bundle.reader import Bundle, BundledLayer
from farm.errors import UsageError
from farm.runtime.hybrid import layer_plan
from farm.runtime.planner import Planned
from farm.torch import write_package, write_triton_model
from farm.torch.layer import forget, register
from farm.torch.packages import aot_inductor
from farm.torch.packages.aot_inductor import Package, SubgraphCall
from farm.torch.packages.subgraphs import Subgraph, divide
from farm.torch.packages.triton import config_of
from tests.toolchain.played_bundle import played_bundle
from tests.toolchain.played_runtimes import HERE, Played, build_driver
from tests.unit.onnx_models import info, model, node, save, squeeze_and_excitation, tensor, values

IMAGE = (8, 6, 6)
STREAM = 77
PYTORCH_WITH_CUDA = f"""
#include <stdint.h>
int cuCtxGetCurrent(void **context) {{ *context = (void *)1; return 0; }}
int aoti_torch_get_current_cuda_stream(int32_t device, void **stream) {{
    (void)device;
    *stream = (void *){STREAM};
    return 0;
}}
"""
"""Functions missing from both the stub driver and a CPU build of PyTorch."""
CALL = """
import sys
import torch

network = torch._inductor.aoti_load_package(sys.argv[1])
for images in map(int, sys.argv[3:]):
    x = {
        "plain": torch.zeros(images, 8, 6, 6),
        "strided": torch.zeros(images, 6, 6, 8).permute(0, 3, 1, 2),
        "wide": torch.zeros(images, 8, 6, 7),
    }[sys.argv[2]]
    print(list(network(x).shape), hex(x.data_ptr())[2:])
assert "farm" not in sys.modules
"""


@dataclass(frozen=True)
class PackageRun:
    """Calls of a package in a process of its own."""

    stdout: str
    stderr: str
    lines: list[list[str]]
    """Calls that reached the driver, as words."""

    def told(self, *words: str) -> list[list[str]]:
        return [line[1:] for line in self.lines if line[0] in words]


@dataclass(frozen=True)
class PlayedPackage:
    bundle: Path
    folder: Path
    """Folder with Triton's model and the played driver."""
    made: Package

    def call(
        self,
        *images: int,
        how: str = "plain",
        fail: str = "",
        arch: int = 90,
        recorded: bool = False,
        preload: Path | None = None,
    ) -> PackageRun:
        log = self.folder / "log"
        log.write_text("")
        played = {"STUB_LOG": str(log), "STUB_ARCH": str(arch), "STUB_FAIL": fail, "LD_LIBRARY_PATH": str(self.folder)}
        if recorded:
            played["STUB_RECORDED"] = "1"
        if preload is not None:
            played["LD_PRELOAD"] = str(preload)
        command = [sys.executable, "-c", CALL, self.made.path, how, *map(str, images)]
        done = subprocess.run(
            command, env={**os.environ, **played}, cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        return PackageRun(done.stdout, done.stderr, [line.split(" ") for line in log.read_text().splitlines()])


def gated_network(folder: Path) -> Path:
    """Two subgraphs, of one layer and of four: between them is a mean, whose order of additions is PyTorch's."""
    proto = onnx.load(squeeze_and_excitation(folder))
    del proto.graph.node[-1]
    proto.graph.node.extend([node("Conv", "sum last", "l", "last"), node("GlobalAveragePool", "l", "y")])
    proto.graph.initializer.append(tensor("last", values(8, 8, 1, 1, seed=5)))
    return save(folder, proto)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayedPackage]:
    folder = tmp_path_factory.mktemp("package")
    (folder / "pytorch.c").write_text(PYTORCH_WITH_CUDA)
    library = ["-Wl,-soname,libcuda.so.1", HERE / "stub_libcuda.c", folder / "pytorch.c", "-o", folder / "libcuda.so"]
    subprocess.run(["gcc", "-std=gnu11", "-shared", "-fPIC", *library], check=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so")
    bundle = played_bundle(folder / "bundle.farm", gated_network(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBRARY_PATH", str(folder))
        yield PlayedPackage(bundle, folder, write_triton_model(Bundle(bundle), folder / "model", "cpu"))


@pytest.mark.slow
def test_a_package_launches_each_layer_as_the_c_runtime_does(played: PlayedPackage, tmp_path: Path) -> None:
    build_driver(tmp_path)
    runtime = Played(tmp_path, tmp_path)
    assert played.made.batch is None
    for images in (1, 3):
        assert runtime.run("c", played.bundle, images) == ""
        layers = [each for each in runtime.launches() if each.kernel == "conv2d"]
        found = played.call(images).told("launch")
        assert [each[0] for each in found] == ["conv2d"] * 5
        for launch, expected in zip(found, layers, strict=True):
            assert tuple(map(int, launch[1:8])) == expected.sizes
            assert [each[0] == "p" or each for each in launch[9:]] == [
                each[0] == "p" or each for each in expected.arguments
            ]


def test_a_layer_gets_the_addresses_of_its_tensors_and_the_current_stream(played: PlayedPackage) -> None:
    found = played.call(3, recorded=True)
    address = "p" + found.stdout.split()[-1]
    depthwise, squeeze, excite, project, last = (launch[9:] for launch in found.told("launch"))
    assert depthwise[0] == address
    assert squeeze[1] == excite[0]
    x, sum_, residual, gate = project[:4]
    assert (x, residual, gate) == (depthwise[1], address, excite[1])
    assert last[0] == sum_
    assert {int(launch[8]) for launch in found.told("launch")} == {STREAM}


def test_a_subgraph_of_several_steps_is_recorded_once_for_each_number_of_images(played: PlayedPackage) -> None:
    found = played.call(3, 1, 3, 1)
    assert len(found.told("recorded")) == 2
    assert [graph for graph, _ in found.told("replay")] == [graph for (graph,) in found.told("recorded")] * 2
    assert {int(stream) for _, stream in found.told("replay")} == {STREAM}
    assert len([launch for launch in found.told("launch") if int(launch[8]) == STREAM]) == 4


def test_a_recorded_subgraph_works_on_copies_of_its_tensors(played: PlayedPackage) -> None:
    found = played.call(3)
    depthwise, squeeze, excite, project, last = (launch[9:] for launch in found.told("launch"))
    mean, features, x, output = found.told("copy")
    assert (squeeze[0], project[0], project[2], last[1]) == (mean[0], features[0], x[0], output[1])
    assert (features[1], x[1]) == (depthwise[1], depthwise[0])
    assert [int(each[2]) for each in (mean, features, x, output)] == [3 * 8 * 4] + 3 * [3 * 8 * 36 * 4]
    assert excite[1] == project[3]


def test_more_images_than_before_get_new_memory_and_graphs(played: PlayedPackage) -> None:
    found = played.call(1, 3, 1)
    (first,), second, third = found.told("recorded")
    assert found.told("dropped")[0] == [first]
    assert [graph for graph, _ in found.told("replay")] == [first, *second, *third]


@pytest.mark.parametrize("how", [{"recorded": True}, {"fail": "cuMemAlloc_v2"}])
def test_a_stream_that_is_recorded_or_a_full_gpu_gets_single_launches(played: PlayedPackage, how: Any) -> None:
    found = played.call(3, 3, **how)
    assert found.stdout.count("[3, 8, 1, 1]") == 2
    assert found.told("replay", "copy") == []
    assert [int(launch[8]) for launch in found.told("launch")] == [STREAM] * 10


def test_an_input_whose_elements_are_apart_is_copied(played: PlayedPackage) -> None:
    found = played.call(3, how="strided")
    assert found.told("launch")[0][9] != "p" + found.stdout.split()[-1]


@pytest.mark.slow
def test_a_package_holds_the_code_of_several_architectures(played: PlayedPackage) -> None:
    assert played.call(1, arch=86).stdout.startswith("[1, 8, 1, 1]")
    assert (
        "it has no code for this GPU (sm_75): compile the model with --arch sm_75 and fetch it again"
        in played.call(1, arch=75).stderr
    )


@pytest.mark.parametrize(
    ("how", "fail", "said"),
    [
        ("wide", "", "farm: x has another size than the model gives it"),
        ("plain", "cuLaunchKernel", "farm: cuLaunchKernel failed (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)"),
        ("plain", "cuModuleLoadData", "cuModuleLoadData failed (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)"),
    ],
)
def test_what_fails_is_said_and_raises(played: PlayedPackage, how: str, fail: str, said: str) -> None:
    found = played.call(2, how=how, fail=fail)
    assert said in found.stderr
    assert "RuntimeError" in found.stderr


@pytest.mark.skipif(not hasattr(torch._inductor.config.cpp, "march"), reason="needs PyTorch's setting of the CPU")
def test_a_package_has_no_instructions_that_older_cpus_lack(played: PlayedPackage, tmp_path: Path) -> None:
    with ZipFile(played.made.path) as packed:
        [library] = [each for each in packed.namelist() if each.endswith(".so")]
        path = packed.extract(library, tmp_path)
    code = subprocess.run(["objdump", "-d", path], capture_output=True, text=True, check=True).stdout
    assert "aoti_torch_cpu_subgraph" in code
    assert "%ymm" not in code


def test_a_package_uses_its_own_copy_of_what_another_library_exports_too(played: PlayedPackage) -> None:
    library = played.folder / "other_regex.so"
    source = "#include <stdlib.h>\nvoid _ZNSt8__detail9_CompilerINSt7__cxx1112regex_traitsIcEEE14_M_disjunctionEv(void)"
    (played.folder / "other_regex.c").write_text(f"{source} {{ abort(); }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", played.folder / "other_regex.c", "-o", library], check=True)
    found = played.call(3, preload=library)
    assert found.stdout.startswith("[3, 8, 1, 1]"), found.stderr


def test_triton_gets_a_package_and_a_configuration_that_joins_no_requests(played: PlayedPackage) -> None:
    assert played.made.path == played.folder / "model" / "1" / "model.pt2"
    assert sorted(each.name for each in (played.folder / "model").iterdir()) == ["1", "config.pbtxt"]
    assert (played.folder / "model" / "config.pbtxt").read_text().splitlines() == [
        'backend: "pytorch"',
        'platform: "torch_aoti"',
        "max_batch_size: 64",
        'input { name: "INPUT__0" data_type: TYPE_FP32 dims: [8, 6, 6] }',
        'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [8, 1, 1] }',
        "instance_group { kind: KIND_GPU }",
    ]


def test_triton_sees_no_batch_where_a_tensor_has_none() -> None:
    x, y = Tensor("x", "float16", (4, 3)), Tensor("y", "int64", (None, 2))
    config = config_of(Package(Path(), None, (x,), (y, x)), 64).splitlines()
    assert config[2:] == [
        "max_batch_size: 0",
        'input { name: "INPUT__0" data_type: TYPE_FP16 dims: [4, 3] }',
        'output { name: "OUTPUT__0" data_type: TYPE_INT64 dims: [-1, 2] }',
        'output { name: "OUTPUT__1" data_type: TYPE_FP16 dims: [4, 3] }',
        "instance_group { kind: KIND_GPU }",
    ]


def test_triton_has_not_every_data_type() -> None:
    with pytest.raises(UsageError, match="Triton has no type for z \\(complex64\\): change the model"):
        config_of(Package(Path(), None, (Tensor("z", "complex64", (None,)),), ()), 1)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [(Conv2d(2, 4, 5, 3, 3, 3), (7, 2, 4, 5)), (Conv2d(2, 1, 5, 3, 1, 3), (7, 2, 5)), (Linear(8, 4), (2, 3, 8))],
)
def test_a_layer_alone_is_traced_with_the_shape_that_it_gives(spec: LayerSpec, shape: tuple[int, ...]) -> None:
    number = register(BundledLayer("l", spec, False, ()), lambda *_: pytest.fail("is not run"))
    try:
        with FakeTensorMode():
            x = torch.empty(shape, dtype=torch.float16)
            expected = torch.ops.farm.layer(x, None, number)
            found = SubgraphCall(Subgraph(("x",), ("y",), Planned(layer_plan("l", spec), b"", {}), spec), 0)(x)
    finally:
        forget(number)
    assert isinstance(found, torch.Tensor)
    assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())


def test_a_network_may_fix_its_batch(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c", "conv"), node("Flatten", "c", "y")]
    for size, batch in (("N", None), (5, 5)):
        proto = model(nodes, [tensor("w", values(4, 2, 1, 1))], inputs=[info("x", (size, 2, 3, 3))])
        bundle = Bundle(played_bundle(tmp_path / f"{size}", save(tmp_path, proto)))
        network, subgraphs = divide(bundle.network, {name: each.spec for name, each in bundle.layers.items()})
        _, found = aot_inductor._exported(bundle, network, subgraphs, "cpu")
        assert found == batch


def test_open_sizes_besides_the_batch_are_refused(tmp_path: Path) -> None:
    proto = model(
        [node("Relu", "x", "r"), node("Gemm", "r w", "y")], [tensor("w", values(3, 4))], inputs=[info("x", ("N", 3))]
    )
    proto.graph.input.append(info("z", ("N", "M")))
    bundle = Bundle(played_bundle(tmp_path / "bundle", save(tmp_path, proto)))
    with pytest.raises(UsageError, match="has open sizes besides the batch: compile the model with --input-shape"):
        write_package(bundle, tmp_path / "model.pt2", "cpu")
    assert not (tmp_path / "model.pt2").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_way_out_is_named(played: PlayedPackage, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"PyTorch finds none: use a machine with a GPU.* The C runtime runs bundles"):
        write_package(Bundle(played.bundle), tmp_path / "model.pt2")


def test_an_older_pytorch_is_refused(played: PlayedPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot_inductor, "_MODE", "mode of later releases")
    with pytest.raises(UsageError, match=r"makes no packages with PyTorch's own bits: install 2\.10 or later"):
        write_package(Bundle(played.bundle), tmp_path / "model.pt2", "cpu")


def test_more_code_than_a_package_holds_is_refused(
    played: PlayedPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aot_inductor, "MOST_BYTES", 2**10)
    with pytest.raises(UsageError, match=r"MiB of code, and a package holds 0 MiB: compile the model for fewer"):
        write_package(Bundle(played.bundle), tmp_path / "model.pt2", "cpu")
