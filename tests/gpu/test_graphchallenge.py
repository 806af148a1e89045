"""`farm bench graphchallenge` on a GPU: every contender gives the rows and the values of float64."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytest.importorskip("sklearn", reason="needs scikit-learn: pip install scikit-learn")

from cli.exit_codes import OK
from cli.main import run
from farm.gpu.device import Device


@pytest.mark.parametrize("network", ["radix-net", "random"])
def test_all_contenders_compute_the_challenge(network: str, device: Device, inline_farm: None, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    arguments = [network, "--layers", "14", "--rows", "1000", "--local", "-q", "--json", str(file)]
    assert run(["bench", "graphchallenge", *arguments]) == OK
    found = json.loads(file.read_text())["measurements"]
    assert [each["contender"] for each in found] == ["generated", "index", "cusparse"]
    for each in found:
        assert each["microseconds"] > 0, each["reason"]
        assert each["relative_error"] < 1e-4
