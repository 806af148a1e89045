"""`farm bench network` and `farm.torch.swap` on a GPU."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch import nn

from cli.exit_codes import OK
from cli.main import run
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.toolchain.tools import Toolchain
from farm.api import Farm
from farm.cuda.device import Device
from farm.jobs.model import BuildOptions, Status
from farm.testing import laptop_settings
from farm.torch import swap


def test_a_network_is_compiled_and_measured_against_pytorch(device: Device, inline_farm: None, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    arguments = ["lenet5", "--batch", "8", "--peers", "eager", "--local", "-q"]
    assert run(["bench", "network", *arguments, "--json", str(file), "--plot", str(tmp_path)]) == OK
    document = json.loads(file.read_text())
    assert document["environment"]["gpu"] == device.name
    found = {each["contender"]: each for each in document["measurements"]}
    assert list(found) == ["generated", "eager-fp32", "eager-tf32", "eager-fp16"]
    assert not [each["reason"] for each in found.values() if each["reason"]]
    own = found["generated"]
    assert own["relative_error"] < 1e-6
    shares = own["facts"]["breakdown"]
    assert list(shares["layer_microseconds"]) == ["conv1", "conv2", "fc1", "fc2"]
    assert sum(shares[kind] for kind in ("compiled", "rest", "gaps")) == pytest.approx(1, abs=0.001)
    assert (tmp_path / "time-networks.svg").exists()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv1(x)))
        y = torch.relu(self.conv2(y) + x)
        return self.head(y.mean((2, 3)))


def test_a_model_with_swapped_layers_computes_the_same(device: Device, toolchain: Toolchain, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Residual().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecations within torch
        torch.onnx.export(net, (torch.zeros(1, 8, 12, 12),), str(tmp_path / "net.onnx"), dynamo=False)
    settings = replace(laptop_settings(tmp_path), nvcc=toolchain.nvcc, ptxas=toolchain.ptxas)
    with Farm.open(settings) as farm:
        [job] = farm.compile([read_checkpoint(tmp_path / "net.onnx")], BuildOptions((device.arch,), batches=(1,)))
        assert job.status is Status.SUCCEEDED, job.reason
        farm.fetch(job.id, tmp_path / "net.farm")
    x = torch.randn(1, 8, 12, 12)
    with torch.inference_mode():
        expected = net(x)  # on the CPU: a GPU's own convolutions may be in TF32
    found = swap(net.cuda(), tmp_path / "net.farm")
    assert sorted(found.replaced.values()) == ["conv1", "conv2", "head"]
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x.cuda()).cpu(), expected, rtol=1e-3, atol=1e-4)
