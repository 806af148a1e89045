"""The GPU of this machine as that of a Ray cluster: tune, bench, bench network, verify --gpu, all of it real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from cli.exit_codes import OK
from cli.main import run
from codegen.model_zoo import lenet5, write_network
from codegen.toolchain.tools import Toolchain
from farm.bench.layers.results import read_results
from farm.config.settings import load_settings
from farm.cuda.device import Device
from farm.ledger import open_ledger
from tests.cluster.one_token import start_cluster


@pytest.fixture
def cluster(device: Device, toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One machine with one GPU; gives the GPU's name."""
    if find_spec("ray") is None:  # imported before it is told of a token, Ray would know of none
        pytest.skip("needs Ray")
    name = device.name
    started = start_cluster(num_cpus=8, num_gpus=1, object_store_memory=80 * 2**20)
    variables = {
        "FARM_EXECUTOR": "ray",
        "FARM_RAY_ADDRESS": started.address,
        "FARM_STORE": f"file://{tmp_path / 'store'}",
        "FARM_DATABASE_URL": f"sqlite:///{tmp_path / 'farm.db'}",
        "FARM_NVCC": str(toolchain.nvcc),
        "FARM_PTXAS": str(toolchain.ptxas),
    }
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    try:
        yield name
    finally:
        started.shutdown()


def test_all_commands_for_a_gpu_run_there_and_what_they_find_is_kept_here(
    cluster: str, device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", "--op", "lenet-conv1", "--batch", "8", "--candidates", "3", "-q"]) == OK
    ledger = open_ledger(load_settings())
    [record] = ledger.tuning.records()
    ledger.close()
    assert (record.gpu, record.tried) == (cluster, 3)

    file = tmp_path / "r.json"
    assert run(["bench", "--op", "lenet-conv1", "--batch", "8", "--peers", "none", "-q", "--json", str(file)]) == OK
    results = read_results(file)
    [measured] = results.measurements
    assert results.environment["gpu"] == cluster
    assert measured.microseconds is not None
    assert measured.facts["tiling_of"] == cluster

    model = tmp_path / "lenet5.onnx"
    write_network(model, lenet5(0.9, seed=0))
    assert run(["compile", str(model), "--arch", device.arch, "-q"]) == OK
    capsys.readouterr()
    assert run(["verify", "--gpu", "--json"]) == OK
    assert {each["on"] for each in json.loads(capsys.readouterr().out)["layers"]} == {cluster}

    pytest.importorskip("torch", reason="whole networks need PyTorch")
    arguments = [str(model), "--batch", "64", "--peers", "none", "-q", "--json", str(file)]
    assert run(["bench", "network", *arguments]) == OK  # from the cubins that were just compiled
    results = read_results(file)
    [measured] = results.measurements
    assert (results.environment["gpu"], measured.reason) == (cluster, "")
