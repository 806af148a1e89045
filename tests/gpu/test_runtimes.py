"""The runtimes without a framework on a GPU: whole networks and layers, in Python and in C."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import farm.runtime
from codegen.errors import DeviceError
from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import lenet5, write_network
from codegen.toolchain.tools import Toolchain
from codegen.verification.reference import layer_output
from farm.api import Farm
from farm.bundle.manifest import with_digest
from farm.bundle.reader import Bundle, BundledLayer
from farm.cuda import prefetch
from farm.cuda.driver import call, device_arch, device_handle, device_name, new_stream
from farm.cuda.graph import CudaGraph
from farm.cuda.module import CodeRange
from farm.cuda.prefetch import CodePrefetcher
from farm.errors import UsageError
from farm.jobs.model import BuildOptions, Status
from farm.runtime import load
from farm.runtime.emulated import run_emulated
from farm.runtime.glue_kernels import glue_ptx
from farm.runtime.network import Network
from farm.runtime.planner import plan_network
from farm.verify.network import NetworkQuestion
from tests.gpu.workbench import settings_of
from tests.torch.bundles import as_compiled
from tests.unit.onnx_models import branched_network, squeeze_and_excitation, values
from tests.unit.test_runtime_operators import ONE, text_of

C = Path(farm.runtime.__file__).parent / "c"
PROGRAM = Path(__file__).parents[1] / "toolchain" / "runtime_program.c"
SHAPES = {"lenet5": (1, 28, 28), "branched": (4, 8, 8), "gated": (8, 6, 6)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtimes")


@dataclass(frozen=True)
class Gpu:
    """The first one of this machine."""

    arch: str
    name: str


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    """Found by the driver alone, without PyCUDA; its context is kept until the end."""
    try:
        device = device_handle(0)
    except DeviceError as error:
        pytest.skip(f"needs a GPU: {error}")
    call("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), device)
    yield Gpu(device_arch(device), device_name(device))
    call("cuDevicePrimaryCtxRelease_v2", device)


@pytest.fixture(scope="module")
def farm_of_here(gpu: Gpu, toolchain: Toolchain, folder: Path) -> Farm:
    return Farm.open(settings_of(folder, toolchain))


@pytest.fixture(scope="module")
def jobs(gpu: Gpu, farm_of_here: Farm, folder: Path) -> dict[str, str]:
    """Compiled for this GPU, each a folder and a file of its name."""
    write_network(folder / "lenet5.onnx", lenet5(0.9, 0))
    branched_network(folder).rename(folder / "branched.onnx")
    squeeze_and_excitation(folder).rename(folder / "gated.onnx")
    made = {}
    for name in SHAPES:
        (job,) = farm_of_here.compile([read_checkpoint(folder / f"{name}.onnx")], BuildOptions((gpu.arch,)))
        assert job.status is Status.SUCCEEDED, job.reason
        farm_of_here.fetch(job.id, folder / name, ptx=True)
        farm_of_here.fetch(job.id, folder / f"{name}.farm")
        made[name] = job.id
    return made


def expected(path: Path, x: NDArray[Any]) -> NDArray[Any]:
    """By onnxruntime where it is installed, else by onnx's evaluator."""
    try:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        [output] = session.run(None, {session.get_inputs()[0].name: x})
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(path))
        [output] = evaluator.run(None, {evaluator.input_names[0]: x})
    return np.asarray(output)


@pytest.mark.parametrize("suffix", ["", ".farm"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_network_computes_what_its_model_does(jobs: dict[str, str], folder: Path, name: str, suffix: str) -> None:
    with load(folder / f"{name}{suffix}") as net:
        for batch in (1, 9, 2):
            x = values(batch, *SHAPES[name], seed=batch)
            wanted = expected(folder / f"{name}.onnx", x)
            np.testing.assert_allclose(net(x), wanted, rtol=1e-3, atol=1e-4)


@contextmanager
def in_device_memory(net: Network, x: NDArray[Any], found: NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """Addresses of the input, which is there, and of the output, and a stream; the output is in `found` afterwards."""
    source, target = ctypes.c_uint64(), ctypes.c_uint64()
    with net._current():
        stream = new_stream()
        for address, array in ((source, x), (target, found)):
            call("cuMemAlloc_v2", ctypes.byref(address), array.nbytes)
        call("cuMemcpyHtoD_v2", source, x.ctypes.data, x.nbytes)
        call("cuStreamSynchronize", None)
        yield source.value, target.value, stream.value or 0
        call("cuStreamSynchronize", stream)
        call("cuMemcpyDtoH_v2", found.ctypes.data, target, found.nbytes)
        for address in (source, target):
            call("cuMemFree_v2", address)
        call("cuStreamDestroy_v2", stream)


def test_a_cuda_graph_fetches_code_and_gives_the_same(
    jobs: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[CodeRange] = []
    fetch = CodePrefetcher.fetch

    def counted(fetcher: CodePrefetcher, code: CodeRange, stream: int, wait_nanoseconds: int = 0) -> None:
        fetched.append(code)
        fetch(fetcher, code, stream, wait_nanoseconds)

    monkeypatch.setattr(CodePrefetcher, "fetch", counted)
    monkeypatch.setattr(prefetch, "MIN_CODE_BYTES", 0)
    monkeypatch.setattr(prefetch, "CACHE_SHARE", 0.0)
    x = values(40, *SHAPES["branched"])
    with load(folder / "branched") as net:
        wanted = net(x)
        assert not fetched
        found = np.zeros_like(wanted)
        with (
            in_device_memory(net, x, found) as (source, target, stream),
            CudaGraph(stream, lambda: net.enqueue([source], [target], 40, stream)) as graph,
        ):
            for _ in range(5):
                graph.replay()
            call("cuStreamSynchronize", ctypes.c_void_p(stream))
        np.testing.assert_array_equal(found, wanted)
    assert fetched


def test_device_pointers_and_a_stream_give_the_same(jobs: dict[str, str], folder: Path) -> None:
    x = values(5, 1, 28, 28)
    with load(folder / "lenet5") as net:
        wanted = net(x)
        found = np.zeros_like(wanted)
        with in_device_memory(net, x, found) as (source, target, stream):
            net.enqueue([source], [target], 5, stream)
        np.testing.assert_array_equal(found, wanted)
        with pytest.raises(UsageError, match="a pointer is not a multiple of 16 bytes"):
            net.enqueue([source + 4], [target], 5)


def test_more_images_than_one_turn_takes_give_the_same(jobs: dict[str, str], folder: Path) -> None:
    x = values(50, 1, 28, 28)
    with load(folder / "lenet5") as net:
        wanted = net(x)
        net._most_images = 16
        np.testing.assert_array_equal(net(x), wanted)


def test_a_gpu_without_cubins_runs_the_ptx(jobs: dict[str, str], folder: Path, tmp_path: Path, gpu: Gpu) -> None:
    """The bundle's code is for another architecture, as it is on a later GPU."""
    other = "sm_120" if not gpu.arch.startswith("sm_12") else "sm_90"
    for path in (folder / "branched").rglob("*"):
        if path.is_file():
            target = tmp_path / path.relative_to(folder / "branched")
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    manifest = json.loads((folder / "branched" / "manifest.json").read_text().replace(gpu.arch, other))
    del manifest["sha256"]
    (tmp_path / "manifest.json").write_bytes(with_digest(manifest))
    assert not any(each.arch == gpu.arch for layer in Bundle(tmp_path).layers.values() for each in layer.cubins)
    x = values(3, *SHAPES["branched"])
    with load(tmp_path) as net, load(folder / "branched") as usual:
        np.testing.assert_allclose(net(x), usual(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SHAPES)
def test_a_whole_network_is_verified_on_the_gpu(jobs: dict[str, str], farm_of_here: Farm, gpu: Gpu, name: str) -> None:
    pytest.importorskip("onnxruntime")
    found = farm_of_here.verify_network(jobs[name], NetworkQuestion(gpu=True, local=True, batch=3))
    assert found.ok, found.first_wrong
    assert found.where == gpu.name
    assert len(found.tensors) >= (4 if name == "lenet5" else 6)  # LeNet-5's layers have its pools


@pytest.fixture(scope="module")
def program(gpu: Gpu, folder: Path) -> Path:
    """In C, with the driver of this machine."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = next(line.split()[-1] for line in maps if "/libcuda.so" in line)
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{C}", "-Wl,--allow-shlib-undefined"]
    subprocess.run(["gcc", *flags, PROGRAM, *sorted(C.glob("*.c")), library, "-o", folder / "program"], check=True)
    return folder / "program"


def test_a_cuda_graph_recorded_in_c_fetches_code_and_gives_the_same(
    jobs: dict[str, str], folder: Path, program: Path
) -> None:
    text = (C / "farm.c").read_text()
    for constant in ("CACHE_SHARE 0.4", "MIN_CODE_BYTES 100000.0"):
        assert constant in text
        text = text.replace(constant, f"{constant.split()[0]} 0.0")
    (folder / "eager.c").write_text(text)
    maps = Path("/proc/self/maps").read_text().splitlines()
    cuda = next(line.split()[-1] for line in maps if "/libcuda.so" in line)
    flags = ["-std=c11", "-O1", "-shared", "-fPIC", f"-I{C}", "-Wl,--allow-shlib-undefined"]
    others = [path for path in C.glob("*.c") if path.name != "farm.c"]
    subprocess.run(["gcc", *flags, folder / "eager.c", *others, cuda, "-o", folder / "eager.so"], check=True)
    library = ctypes.CDLL(str(folder / "eager.so"))
    x = values(40, *SHAPES["branched"])
    with load(folder / "branched") as net:
        wanted = net(x)
        found = np.zeros_like(wanted)
        bundle, source, target = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
        with net._current():
            assert library.farm_open(str(folder / "branched").encode(), ctypes.byref(bundle)) == 0
            stream = new_stream()
            for address, array in ((source, x), (target, found)):
                call("cuMemAlloc_v2", ctypes.byref(address), array.nbytes)
            call("cuMemcpyHtoD_v2", source, x.ctypes.data, x.nbytes)
            call("cuStreamSynchronize", None)

            def run() -> None:
                assert library.farm_run(bundle, 40, ctypes.byref(source), ctypes.byref(target), stream) == 0

            run()  # its buffers
            call("cuStreamSynchronize", stream)
            with CudaGraph(stream.value or 0, run) as graph:
                for _ in range(5):
                    graph.replay()
                call("cuStreamSynchronize", stream)
            call("cuMemcpyDtoH_v2", found.ctypes.data, target, found.nbytes)
            library.farm_close(bundle)
            for address in (source, target):
                call("cuMemFree_v2", address)
            call("cuStreamDestroy_v2", stream)
        np.testing.assert_array_equal(found, wanted)


def run_in_c(program: Path, folder: Path, bundle: Path, x: NDArray[Any], *layer: str) -> NDArray[Any]:
    x.tofile(folder / "x")
    command = [program, bundle, str(len(x)), folder / "x", folder / "y", *layer]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.fromfile(folder / "y", np.float32)


def test_a_bundle_for_several_batch_sizes_gives_what_bundles_for_one_do(
    gpu: Gpu, farm_of_here: Farm, jobs: dict[str, str], folder: Path, program: Path, tmp_path: Path
) -> None:
    several = BuildOptions((gpu.arch,), (1, 8, 64))
    for name, batches in (("1", (1,)), ("8", (8,)), ("64", (64,)), ("all", several.batches)):
        options = BuildOptions((gpu.arch,), batches, leave_dense="never")
        [job] = farm_of_here.compile([read_checkpoint(folder / "branched.onnx")], options)
        assert job.status is Status.SUCCEEDED, job.reason
        farm_of_here.fetch(job.id, tmp_path / name)
    with load(tmp_path / "all") as net:
        for images in (1, 3, 8, 20, 64, 200):
            x = values(images, *SHAPES["branched"], seed=images)
            with load(tmp_path / str(several.batch_for(images))) as alone:
                wanted = alone(x)
            np.testing.assert_array_equal(net(x), wanted)
            np.testing.assert_array_equal(
                run_in_c(program, tmp_path, tmp_path / "all", x).reshape(wanted.shape), wanted
            )


@pytest.mark.parametrize("bundle", ["lenet5", "lenet5.farm", "branched"])
def test_a_network_runs_in_c(jobs: dict[str, str], folder: Path, program: Path, tmp_path: Path, bundle: str) -> None:
    name = bundle.removesuffix(".farm")
    x = values(7, *SHAPES[name])
    wanted = expected(folder / f"{name}.onnx", x)
    found = run_in_c(program, tmp_path, folder / bundle, x).reshape(wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_a_layer_runs_in_c(jobs: dict[str, str], folder: Path, program: Path, tmp_path: Path) -> None:
    _, layer, *_ = as_compiled(Bundle(folder / "lenet5"), read_checkpoint(folder / "lenet5.onnx"))
    x = values(3, *layer.spec.input_shape)
    wanted = layer_output(layer.spec, layer.weights, x)
    found = run_in_c(program, tmp_path, folder / "lenet5", x, layer.name).reshape(wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@dataclass(frozen=True)
class GlueOnly:
    """The parts of a bundle that Network takes, for a network without compiled layers."""

    plan: bytes
    constants: bytes
    glue: bytes
    path: str = "glue"
    archs: tuple[str, ...] = ()

    @property
    def layers(self) -> dict[str, BundledLayer]:
        return {}


def joined(protos: list[onnx.ModelProto]) -> onnx.ModelProto:
    """Networks of one opset beside each other."""
    whole = onnx.compose.add_prefix(protos[0], "n0_")
    for i, proto in enumerate(protos[1:], start=1):
        graph = onnx.compose.add_prefix(proto, f"n{i}_").graph
        for field in ("node", "initializer", "input", "output"):
            getattr(whole.graph, field).extend(getattr(graph, field))
    return whole


@pytest.mark.parametrize("opset", sorted({proto.opset_import[0].version for proto in ONE.values()}))
def test_what_is_beside_the_layers_computes_what_the_emulator_does(gpu: Gpu, opset: int) -> None:
    names = [name for name, proto in ONE.items() if proto.opset_import[0].version == opset]
    proto = joined([ONE[name] for name in names])
    planned = plan_network(read_network(proto.SerializeToString()), {})
    bundle: Any = GlueOnly(text_of(planned), planned.constants, glue_ptx())
    arrays = [values(*port.shape_of(3), seed=i) for i, port in enumerate(planned.plan.inputs)]
    with Network(bundle) as net:
        found = net.run(arrays)
    for name, got, wanted in zip(names, found, run_emulated(planned.plan, {}, planned.constants, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
