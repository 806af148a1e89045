"""Layers that write into a Concat's output, or read a part of it, on a GPU: values of the model, in eager mode and in
a CUDA graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.toolchain.tools import Toolchain
from farm.api import Farm
from farm.cuda.device import Device
from farm.jobs.model import BuildOptions, Status
from farm.testing import laptop_settings
from farm.torch import load
from tests.torch.test_concat_outputs import calls, dense_block, module_read, network
from tests.unit.onnx_models import save, values

CALLS = {"each layer reads all before it": (3, 1, 0), "a dense block": (2, 1, 0)}
"""By network: what `calls` finds."""


def proto_of(name: str) -> onnx.ModelProto:
    return dense_block() if name == "a dense block" else network(name)


@pytest.fixture(scope="module", params=CALLS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fetched(name: str, device: Device, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("places")
    settings = replace(laptop_settings(folder), nvcc=toolchain.nvcc, ptxas=toolchain.ptxas)
    with Farm.open(settings) as farm:
        [job] = farm.compile([read_checkpoint(save(folder, proto_of(name)))], BuildOptions((device.arch,)))
        assert job.status is Status.SUCCEEDED, job.reason
        farm.fetch(job.id, folder / "bundle")
    return folder / "bundle"


@pytest.mark.parametrize("images", [1, 3, 50])
def test_layers_that_write_among_others_compute_what_the_model_does(
    name: str, fetched: Path, images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = load(fetched, compile_rest="never")
    assert calls(net) == CALLS[name]
    x = torch.from_numpy(values(images, 3, 8, 8, seed=images))
    wanted = module_read(tmp_path, proto_of(name), dense=True)(x).numpy()
    with torch.inference_mode():
        np.testing.assert_allclose(net(x.cuda()).cpu().numpy(), wanted, rtol=1e-3, atol=1e-4)
        compiled = load(fetched, compile_rest="always")
        np.testing.assert_allclose(compiled(x.cuda()).cpu().numpy(), wanted, rtol=1e-3, atol=1e-4)
        from farm.torch import layer

        for _, compute in layer._layers.values():
            if isinstance(compute, layer.GpuLayer):
                monkeypatch.setattr(compute, "_most_images", 16)
        np.testing.assert_allclose(net(x.cuda()).cpu().numpy(), wanted, rtol=1e-3, atol=1e-4)


def test_they_run_in_a_cuda_graph(fetched: Path) -> None:
    net = load(fetched)
    x = torch.from_numpy(values(3, 3, 8, 8)).cuda()
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            net(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = net(x)
        x.copy_(torch.from_numpy(values(3, 3, 8, 8, seed=5)))
        graph.replay()
        torch.testing.assert_close(output, net(x), rtol=0, atol=0)
