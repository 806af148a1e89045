"""One program on two GPUs of a machine: a bundle is loaded on each, and each computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import farm.runtime
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import write_network
from codegen.model_zoo.resnet import resnet18
from codegen.toolchain.tools import Toolchain
from farm.api import Farm
from farm.cuda.device import Device
from farm.jobs.model import BuildOptions, Status
from farm.torch import capture, load
from tests.gpu.workbench import settings_of

GPUS = ("cuda:0", "cuda:1")


@pytest.fixture(scope="module")
def bundle(device: Device, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a network with residuals and pools."""
    if torch.cuda.device_count() < len(GPUS):
        pytest.skip("needs two GPUs")
    folder = tmp_path_factory.mktemp("two_gpus")
    write_network(folder / "net.onnx", resnet18(0.9, 0, width=16))
    with Farm.open(settings_of(folder, toolchain)) as farm:
        (job,) = farm.compile([read_checkpoint(folder / "net.onnx")], BuildOptions((device.arch,)))
        assert job.status is Status.SUCCEEDED, job.reason
        farm.fetch(job.id, folder / "net.farm")
    return folder / "net.farm"


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((3, 3, 224, 224), np.float32)


@pytest.fixture
def wanted(bundle: Path, x: np.ndarray) -> Iterator[torch.Tensor]:
    """The output of the first GPU."""
    with torch.inference_mode():
        yield load(bundle, "cuda:0")(torch.from_numpy(x).to("cuda:0")).cpu()


def same(found: torch.Tensor, wanted: torch.Tensor, gpu: str) -> None:
    assert str(found.device) == gpu
    torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=0)


def test_a_network_computes_the_same_on_the_second_gpu(bundle: Path, x: np.ndarray, wanted: torch.Tensor) -> None:
    with torch.inference_mode():
        same(load(bundle, "cuda:1")(torch.from_numpy(x).to("cuda:1")), wanted, "cuda:1")
        assert torch.cuda.current_device() == 0


def test_a_network_that_is_moved_runs_where_its_input_is(bundle: Path, x: np.ndarray, wanted: torch.Tensor) -> None:
    net = load(bundle, "cuda:0")
    with torch.inference_mode():
        for gpu in (*reversed(GPUS), *GPUS):
            same(net.to(gpu)(torch.from_numpy(x).to(gpu)), wanted, gpu)


def test_networks_are_captured_on_each_gpu(bundle: Path, x: np.ndarray, wanted: torch.Tensor) -> None:
    captured = {gpu: capture(load(bundle, gpu)) for gpu in GPUS}
    with torch.inference_mode():
        for gpu in (*GPUS, *GPUS):
            same(captured[gpu](torch.from_numpy(x).to(gpu)), wanted, gpu)


def test_threads_use_both_gpus_at_once(bundle: Path, x: np.ndarray, wanted: torch.Tensor) -> None:
    nets = {gpu: load(bundle, gpu) for gpu in GPUS}
    given = {gpu: torch.from_numpy(x).to(gpu) for gpu in GPUS}

    def answer(gpu: str) -> torch.Tensor:
        with torch.inference_mode():
            outputs = [nets[gpu](given[gpu]) for _ in range(20)]
            torch.cuda.synchronize(gpu)
        return outputs[-1]

    with ThreadPoolExecutor(4) as pool:
        for gpu, found in zip(GPUS * 4, pool.map(answer, GPUS * 4), strict=True):
            same(found, wanted, gpu)


def test_the_runtime_without_a_framework_runs_on_each_gpu(bundle: Path, x: np.ndarray, wanted: torch.Tensor) -> None:
    with farm.runtime.load(bundle, 0) as first, farm.runtime.load(bundle, 1) as second:
        answers = [np.asarray(net(x)) for net in (second, first, second)]
        with ThreadPoolExecutor(2) as pool:
            answers += [np.asarray(each) for each in pool.map(lambda net: net(x), (first, second))]
    for each in answers[1:]:
        np.testing.assert_array_equal(each, answers[0])
    np.testing.assert_allclose(answers[0], wanted.numpy(), rtol=1e-3, atol=1e-4)
