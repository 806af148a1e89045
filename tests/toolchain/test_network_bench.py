"""`farm bench network` compiles what no bundle was given for: tools real, the GPU played."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from cli.exit_codes import OK
from cli.main import run
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import Conv2d
from codegen.model_zoo import operator_network, write_network
from farm.api import Farm
from farm.bench.networks import benchmark
from farm.config.settings import load_settings
from tests.torch.played_gpu import OWN_LATENCY, PlayedGpu
from tests.unit.onnx_models import constants, info, model, node, save, values


def test_a_model_without_a_bundle_is_compiled_for_the_gpu_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("FARM_EXECUTOR", "inline")
    path = tmp_path / "small.onnx"
    write_network(path, operator_network(Conv2d(3, 8, 8, 4, 3, 3), 0.5, 0))
    monkeypatch.setattr(benchmark, "_network_gpu", lambda: PlayedGpu(read_checkpoint(path)))
    file = tmp_path / "r.json"
    assert run(["bench", "network", str(path), "--batch", "2", "--peers", "none", "-q", "--json", str(file)]) == OK
    [measured] = json.loads(file.read_text())["measurements"]
    assert (measured["operator"], measured["batch"], measured["microseconds"]) == ("small", 2, OWN_LATENCY)
    assert measured["facts"]["compile_seconds"] > 0
    assert measured["facts"]["code_bytes"] > 1000


def test_a_model_is_compiled_with_the_options_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("FARM_EXECUTOR", "inline")
    nodes = [node("Conv", "x w", "c"), node("Mul", "c s", "d"), node("Softmax", "d", "y")]
    inputs = [info("x", ("N", 8, 4, 4)), info("s", (1,))]
    path = save(tmp_path, model(nodes, constants(w=values(8, 8, 1, 1)), inputs=inputs))
    fixed = {"s": 2.0}
    monkeypatch.setattr(benchmark, "_network_gpu", lambda: PlayedGpu(read_checkpoint(path, {}, fixed)))
    file = tmp_path / "r.json"
    options = ["--trust", "checked", "--leave-dense", "never", "--allow-tf32", "--input-value", "s=2"]
    command = ["bench", "network", str(path), "--batch", "2", "--peers", "none", "-q", "--json", str(file)]
    assert run([*command, *options]) == OK
    [measured] = json.loads(file.read_text())["measurements"]
    assert measured["microseconds"] == OWN_LATENCY
    with Farm.open(load_settings()) as farm:
        job = farm.job(measured["facts"]["job"])
    found = job.options
    assert (found.trust, found.leave_dense, found.allow_tf32, found.batches) == ("checked", "never", True, (2,))
