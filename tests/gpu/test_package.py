"""AOTInductor packages of bundles in C++, without Python, give the bits of farm.torch."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch.utils import cpp_extension

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import write_network
from codegen.model_zoo.resnet import resnet18
from codegen.toolchain.tools import Toolchain
from farm.api import Farm
from farm.bundle.reader import Bundle
from farm.cuda.device import Device
from farm.jobs.model import BuildOptions, Status
from farm.torch import load, write_package
from tests.gpu.workbench import settings_of
from tests.unit.onnx_models import branched_network, squeeze_and_excitation

BATCHES = (3, 1, 64, 8)
SHAPES = {"branched": (4, 8, 8), "gated": (8, 6, 6), "resnet18": (3, 224, 224)}
"""Layers with a Concat and a pool between them, two subgraphs with a mean between them, and one that is recorded."""


@pytest.fixture(scope="module")
def program(device: Device, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[Path]]:
    """The path of the C++ program, which is compiled while a package is exported."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit(build_program, toolchain, tmp_path_factory.mktemp("program") / "package_program")


def build_program(toolchain: Toolchain, path: Path) -> Path:
    folders = [*cpp_extension.include_paths(), toolchain.nvcc.parents[1] / "include"]
    torch.zeros(1, device="cuda")
    maps = Path("/proc/self/maps").read_text().splitlines()
    cuda_runtime = next(Path(line.split()[-1]) for line in maps if "libcudart" in line)
    libraries = [cuda_runtime.parent, *cpp_extension.library_paths()]
    linked = [f"-l{each}" for each in ("torch", "torch_cpu", "torch_cuda", "c10", "c10_cuda", f":{cuda_runtime.name}")]
    found = [option for each in libraries for option in (f"-L{each}", f"-Wl,-rpath,{each}")]
    command = ["g++", "-std=c++20", "-O1", Path(__file__).with_name("package_program.cpp"), "-o", path]
    command += [f"-I{each}" for each in folders]
    subprocess.run([*command, "-Wl,--no-as-needed", *found, *linked], check=True)
    return path


def written(name: str, folder: Path) -> Path:
    """The model of a network."""
    path = folder / f"{name}.onnx"
    if name == "resnet18":
        write_network(path, resnet18(0.9, 0, width=16))
        return path
    return (branched_network if name == "branched" else squeeze_and_excitation)(folder).rename(path)


@pytest.mark.parametrize("name", SHAPES)
def test_a_package_gives_the_bits_of_the_module_without_python(
    device: Device, toolchain: Toolchain, program: Future[Path], tmp_path: Path, name: str
) -> None:
    with Farm.open(settings_of(tmp_path, toolchain)) as farm:
        (job,) = farm.compile([read_checkpoint(written(name, tmp_path))], BuildOptions(("sm_75", device.arch)))
        assert job.status is Status.SUCCEEDED, job.reason
        farm.fetch(job.id, tmp_path / "net.farm")
    assert write_package(Bundle(tmp_path / "net.farm"), tmp_path / "net.pt2").batch is None
    with ZipFile(tmp_path / "net.pt2") as packed:  # code of PyTorch's for this GPU alone
        assert [each for each in packed.namelist() if each.endswith((".cubin", ".ptx", ".fatbin"))] == []
    x = np.random.default_rng(0).standard_normal((max(BATCHES), *SHAPES[name]), np.float32)
    x.tofile(tmp_path / "x")
    sizes = ",".join(map(str, SHAPES[name]))
    command = [program.result(), tmp_path / "net.pt2", sizes, tmp_path / "x", tmp_path / "y", *map(str, BATCHES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    module = load(tmp_path / "net.farm", compile_rest="never")
    expected = [module(torch.from_numpy(x[:images]).cuda()).cpu().numpy().tobytes() for images in BATCHES]
    assert (tmp_path / "y").read_bytes() == b"".join(expected)
