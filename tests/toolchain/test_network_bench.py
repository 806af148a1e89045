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
from farm.bench.networks import benchmark
from tests.torch.played_gpu import OWN_LATENCY, PlayedGpu


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
