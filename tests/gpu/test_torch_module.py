"""A bundle as a PyTorch module on a GPU computes what its model does."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import alexnet_cifar10, lenet5, mlp, write_network
from codegen.model_zoo.resnet import resnet18
from codegen.toolchain.tools import Toolchain
from farm.api import Farm
from farm.bench.networks.session import layer_kernels
from farm.bench.networks.torch_timing import NetworkGpu
from farm.bundle.reader import Bundle
from farm.cuda.device import Device
from farm.cuda.module import CodeRange
from farm.cuda.prefetch import CodePrefetcher
from farm.errors import UsageError
from farm.jobs.model import BuildOptions, Status
from farm.testing import laptop_settings
from farm.torch import capture, load
from tests.gpu.workbench import settings_of
from tests.unit.onnx_models import sequence_network, squeeze_and_excitation, values

NETWORKS = {
    "lenet5": (lenet5, (1, 28, 28)),
    "alexnet_cifar10": (alexnet_cifar10, (3, 32, 32)),
    "mlp": (mlp, (1, 28, 28)),
    "resnet18": (lambda sparsity, seed: resnet18(sparsity, seed, width=16), (3, 224, 224)),
}

ROUNDING = 1e-5
"""Share of a largest output: two that are nearer to each other may come in either order."""
LIBRARY = re.compile("gemm|conv|cudnn|cutlass|winograd", re.IGNORECASE)
"""In the names of kernels that compute convolutions and products of matrices."""


@pytest.fixture(scope="module")
def fetched(device: Device, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of the networks, each a folder and a file, beside their models."""
    folder = tmp_path_factory.mktemp("networks")
    with Farm.open(settings_of(folder, toolchain)) as farm:
        for name, (network, _) in NETWORKS.items():
            write_network(folder / f"{name}.onnx", network(0.9, 0))
            (job,) = farm.compile([read_checkpoint(folder / f"{name}.onnx")], BuildOptions((device.arch,)))
            assert job.status is Status.SUCCEEDED, job.reason
            farm.fetch(job.id, folder / name)
            farm.fetch(job.id, folder / f"{name}.farm")
    return folder


def expected(folder: Path, name: str, x: np.ndarray) -> np.ndarray:
    """By onnx's evaluator, or onnxruntime where it is installed."""
    try:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), providers=["CPUExecutionProvider"])
        [output] = session.run(None, {session.get_inputs()[0].name: x})
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(folder / f"{name}.onnx"))
        [output] = evaluator.run(None, {evaluator.input_names[0]: x})
    return np.asarray(output)


def inputs(name: str, batch: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, *NETWORKS[name][1]), np.float32)


@pytest.mark.parametrize("batch", [1, 2, 9])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_its_model_does(fetched: Path, name: str, batch: int) -> None:
    net = load(fetched / name)
    x = inputs(name, batch)
    with torch.inference_mode():
        found = net(torch.from_numpy(x).cuda()).cpu().numpy()
    np.testing.assert_allclose(found, expected(fetched, name, x), rtol=1e-3, atol=1e-4)


def test_the_largest_output_of_1000_images_is_onnxruntimes(fetched: Path) -> None:
    """Outputs around their means: those of a network with random weights are nearly the same for all images."""
    pytest.importorskip("onnxruntime", reason="an evaluator in Python would take an hour")
    net = load(fetched / "resnet18")
    chunks = [inputs("resnet18", 100, seed) for seed in range(10)]
    with torch.inference_mode():
        found = np.concatenate([net(torch.from_numpy(x).cuda()).cpu().numpy() for x in chunks])
    wanted = np.concatenate([expected(fetched, "resnet18", x) for x in chunks])
    mean = wanted.mean(0)
    second, first = np.sort(wanted - mean, 1)[:, -2:].T
    clear = first - second > ROUNDING * np.abs(wanted).max()
    top = (wanted - mean).argmax(1)
    assert clear.sum() > 980
    assert len(set(top)) > 100
    np.testing.assert_array_equal((found - mean).argmax(1)[clear], top[clear])


def test_each_compiled_layer_is_launched_and_no_library_computes_one(fetched: Path) -> None:
    gpu = NetworkGpu()
    x = torch.from_numpy(inputs("resnet18", 2)).cuda()
    kernels = Counter(each.name for each in gpu.trace(load(fetched / "resnet18"), [(x,)])[-1])
    wanted = Counter(
        name for layer in layer_kernels(Bundle(fetched / "resnet18"), gpu.arch, 2) for name in layer.kernels
    )
    assert {name: kernels[name] for name in wanted} == dict(wanted)
    assert not [name for name in kernels if name not in wanted and LIBRARY.search(name)]


def compiled(path: Path, device: Device, toolchain: Toolchain) -> Path:
    """The bundle of a model, beside it."""
    settings = replace(laptop_settings(path.parent), nvcc=toolchain.nvcc, ptxas=toolchain.ptxas)
    with Farm.open(settings) as farm:
        (job,) = farm.compile([read_checkpoint(path)], BuildOptions((device.arch,)))
        assert job.status is Status.SUCCEEDED, job.reason
        return farm.fetch(job.id, path.with_suffix("")).parent


@pytest.mark.parametrize("batch", [1, 5])
def test_gates_go_to_the_kernel_that_multiplies_by_them(
    batch: int, device: Device, toolchain: Toolchain, tmp_path: Path
) -> None:
    bundle = compiled(squeeze_and_excitation(tmp_path).rename(tmp_path / "gated.onnx"), device, toolchain)
    x = values(batch, 8, 6, 6, seed=1)
    with torch.inference_mode():
        found = load(bundle)(torch.from_numpy(x).cuda()).cpu().numpy()
    np.testing.assert_allclose(found, expected(tmp_path, "gated", x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 5])
def test_sizes_places_and_a_recurrent_layer_are_computed_in_a_captured_graph(
    batch: int, device: Device, toolchain: Toolchain, tmp_path: Path
) -> None:
    bundle = compiled(sequence_network(tmp_path).rename(tmp_path / "sequence.onnx"), device, toolchain)
    network = capture(load(bundle))
    for seed in (1, 2):
        x = values(batch, 4, 8, 8, seed=seed)
        with torch.backends.cudnn.flags(allow_tf32=False):
            found = network(torch.from_numpy(x).cuda()).cpu().numpy()
        np.testing.assert_allclose(found, expected(tmp_path, "sequence", x), rtol=1e-3, atol=1e-4)


def test_one_file_loads_like_the_folder(fetched: Path) -> None:
    x = torch.from_numpy(inputs("lenet5", 4)).cuda()
    with torch.inference_mode():
        torch.testing.assert_close(load(fetched / "lenet5.farm")(x), load(fetched / "lenet5")(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["lenet5", "resnet18"])
def test_a_network_runs_in_a_cuda_graph_on_other_inputs_too(fetched: Path, name: str) -> None:
    net = load(fetched / name)
    x = torch.from_numpy(inputs(name, 3)).cuda()
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            net(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = net(x)
        for seed in (1, 2):
            x.copy_(torch.from_numpy(inputs(name, 3, seed)))
            graph.replay()
            torch.testing.assert_close(output, net(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["lenet5", "resnet18"])
def test_a_captured_network_gives_the_networks_outputs_for_every_shape_in_turn(fetched: Path, name: str) -> None:
    net = load(fetched / name)
    captured = capture(net)
    with torch.inference_mode():
        for seed, batch in enumerate((1, 3, 1, 0, 3)):
            x = torch.from_numpy(inputs(name, batch, seed)).cuda()
            torch.testing.assert_close(captured(x), net(x), rtol=0, atol=0)


def test_code_that_is_fetched_ahead_changes_no_bit(fetched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[CodeRange] = []
    fetch = CodePrefetcher.fetch

    def counted(fetcher: CodePrefetcher, code: CodeRange, stream: int, wait_nanoseconds: int = 0) -> None:
        found.append(code)
        fetch(fetcher, code, stream, wait_nanoseconds)

    monkeypatch.setattr(CodePrefetcher, "fetch", counted)
    net = load(fetched / "resnet18")
    x = torch.randn(8, 3, 224, 224, device="cuda")
    captured = capture(net)
    for _ in range(5):
        torch.testing.assert_close(captured(x), net(x), rtol=0, atol=0)
    assert len(found) > 5
    assert len({code.address for code in found}) == len(found)


def test_outputs_of_a_captured_network_outlive_the_next_call_and_take_part_in_training(fetched: Path) -> None:
    captured = capture(load(fetched / "lenet5"))
    first, second = (torch.from_numpy(inputs("lenet5", 2, seed)).cuda() for seed in (0, 1))
    with torch.inference_mode():
        kept = captured(first)
        copy = kept.clone()
        captured(second)
    torch.testing.assert_close(kept, copy, rtol=0, atol=0)
    scale = torch.ones(10, device="cuda", requires_grad=True)
    (captured(first) * scale).sum().backward()
    torch.testing.assert_close(scale.grad, copy.sum(0))


def test_a_captured_network_serves_threads_on_streams_of_their_own(fetched: Path) -> None:
    net = load(fetched / "lenet5")
    captured = capture(net)
    given = [torch.from_numpy(inputs("lenet5", 4, seed)).cuda() for seed in range(6)]
    with torch.inference_mode():
        wanted = [net(x) for x in given]
    torch.cuda.synchronize()

    def answers(x: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(torch.cuda.Stream()):
            outputs = [captured(x) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        return outputs[-1]

    with ThreadPoolExecutor(len(given)) as pool:
        for found, expected_output in zip(pool.map(answers, given), wanted, strict=True):
            torch.testing.assert_close(found, expected_output, rtol=0, atol=0)


def test_a_network_runs_in_a_thread_that_has_called_nothing_of_cuda(fetched: Path) -> None:
    net = load(fetched / "lenet5")
    x = torch.from_numpy(inputs("lenet5", 4)).cuda()
    wanted = net(x)
    torch.cuda.synchronize()  # and so the thread takes its tensors from memory that PyTorch has
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(net, x).result()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_a_network_runs_on_the_stream_that_is_current(fetched: Path) -> None:
    net = load(fetched / "resnet18")
    given = torch.from_numpy(inputs("resnet18", 2)).cuda()
    with torch.inference_mode():
        wanted = net(given)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                x = given * 1.0
                output = net(x)
        stream.synchronize()
    torch.testing.assert_close(output, wanted, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # within torch
def test_a_compiled_network_computes_the_same(fetched: Path) -> None:
    net = load(fetched / "alexnet_cifar10")
    x = torch.from_numpy(inputs("alexnet_cifar10", 4)).cuda()
    with torch.inference_mode():
        torch.testing.assert_close(torch.compile(net)(x), net(x), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # within torch
def test_a_compiled_rest_computes_the_same_in_calls_and_in_graphs(fetched: Path) -> None:
    net, eager = (load(fetched / "alexnet_cifar10", compile_rest=choice) for choice in ("always", "never"))
    x = torch.from_numpy(inputs("alexnet_cifar10", 4)).cuda()
    with torch.inference_mode():
        wanted = eager(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # which must not compile
            early = net(x)
        graph.replay()
        torch.testing.assert_close(early, wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(net(x), wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(capture(net)(x), wanted, rtol=1e-5, atol=1e-5)
    assert not net.is_eager


def test_more_images_than_one_launch_takes_are_launched_in_slices(
    fetched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = load(fetched / "lenet5")
    x = torch.from_numpy(inputs("lenet5", 50)).cuda()
    with torch.inference_mode():
        wanted = net(x)
        from farm.torch import layer

        for _, compute in layer._layers.values():
            monkeypatch.setattr(compute, "_most_images", 16)
        torch.testing.assert_close(net(x), wanted, rtol=0, atol=0)


def test_a_batch_of_no_images_gives_no_outputs(fetched: Path) -> None:
    with torch.inference_mode():
        assert load(fetched / "lenet5")(torch.empty(0, 1, 28, 28, device="cuda")).shape == (0, 10)


def test_a_bundle_without_code_for_this_gpu_says_what_to_compile(fetched: Path, device: Device) -> None:
    bundle = Bundle(fetched / "lenet5")
    text = (fetched / "lenet5" / "manifest.json").read_text()
    other = "sm_120" if device.arch != "sm_120" else "sm_90"
    strange = fetched / "strange"
    strange.mkdir()
    for path in (fetched / "lenet5").rglob("*"):
        if path.is_file():
            target = strange / path.relative_to(fetched / "lenet5")
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    (strange / "manifest.json").write_text(text.replace(f'"{device.arch}"', f'"{other}"'))
    assert bundle.archs == (device.arch,)
    with pytest.raises(UsageError, match=f"only, not for .*: compile the model with --arch {device.arch}"):
        load(strange)
