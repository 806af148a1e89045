"""`farm bench network` from the command line, on a GPU that is played."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from cli.exit_codes import OK, UNREACHABLE
from cli.main import run
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import lenet5, write_network
from farm.bench.networks import benchmark
from tests.torch.bundles import whole_bundle
from tests.torch.played_gpu import PlayedGpu


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments: a network that ships, and a bundle of it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    write_network(tmp_path / "lenet5.onnx", lenet5(0.9, 0))
    bundle = whole_bundle(tmp_path / "lenet5-b8.farm", read_checkpoint(tmp_path / "lenet5.onnx"), 8)
    return ["bench", "network", "lenet5", "--bundle", str(bundle), "--batch", "8", "--peers", "eager"]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: list[str]) -> None:
    checkpoint = read_checkpoint(tmp_path / "lenet5.onnx")
    monkeypatch.setattr(benchmark, "_network_gpu", lambda: PlayedGpu(checkpoint))


@pytest.mark.usefixtures("played")
def test_a_given_bundle_is_measured_and_nothing_is_compiled(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*given, "--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "figures")]) == OK
    shown = capsys.readouterr()
    assert "lenet5 at batch 8, float32: ours 100 us" in shown.err
    assert "3.00x" in shown.out
    assert (tmp_path / "figures" / "time-networks.svg").exists()
    assert not (tmp_path / "farm").exists()  # neither store nor ledger


@pytest.mark.usefixtures("played")
def test_json_on_stdout_is_one_document(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*given, "--json", "-", "-q"]) == OK
    shown = capsys.readouterr()
    assert shown.err == ""
    assert [each["contender"] for each in json.loads(shown.out)["measurements"]][:2] == ["generated", "eager-fp32"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_exit_code_says_so(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(given) == UNREACHABLE
    assert "PyTorch finds no GPU here" in capsys.readouterr().err
