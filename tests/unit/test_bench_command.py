"""`farm bench` without a GPU: errors are reported before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.exit_codes import OK, UNREACHABLE, USAGE
from cli.main import run
from cli.options.bench import peers_of
from codegen.errors import DeviceError
from farm.bench.layers.benchmark import Plan, resumed
from farm.bench.layers.results import Results, write_results
from farm.cuda import device
from farm.errors import UsageError
from tests.unit.bench_results import made_up


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(self: device.Device) -> None:
        raise DeviceError("no GPU can be used here: run this on a machine with one")

    monkeypatch.setattr(device.Device, "__init__", missing)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.mark.parametrize("arguments", [[], ["run"], ["--op", "lenet-conv1", "--batch", "1"], ["paper"]])
def test_without_a_gpu_the_exit_code_says_so(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *arguments]) == UNREACHABLE
    assert "run this on a machine with one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--op", "lenet"], "no such operator: lenet"),
        (["--batch", "0"], "--batch 0"),
        (["--sparsity", "1.5"], "--sparsity 1.5"),
        (["--sparsity", "a,b"], "--sparsity a,b"),
        (["--peers", "tensorrt"], "--peers tensorrt"),
        (["--data-type", "int8"], "--data-type int8"),
        (["--layer", "conv1"], "--layer needs a model"),
        (["model.onnx", "--op", "lenet-conv1"], "--op cannot be combined with a model"),
        (["model.onnx"], "no such file"),
        (["--trust", "anything"], "'anything' is not one of 'qualified', 'checked'"),
        (["model.onnx", "--input-value", "rate"], "--input-value rate"),
        (["--resume"], "--resume needs a file"),
        (["--peak-tflops", "-1"], "--peak-tflops -1"),
        (["plot", "none.json", "figures"], "none.json cannot be read"),
        (["plot", __file__, "figures"], "name one that farm bench --json wrote"),
    ],
)
def test_invalid_options_are_usage_errors(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *arguments]) == USAGE
    assert said in capsys.readouterr().err


def test_a_saved_file_is_shown_and_drawn_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path / "r.json", made_up())
    assert run(["bench", "plot", str(tmp_path / "r.json"), str(tmp_path / "figures")]) == OK
    shown = capsys.readouterr()
    assert "NVIDIA Made-Up" in shown.out
    assert "vgg-conv3" in shown.out
    assert (tmp_path / "figures" / "speedup-float32-batch-64.svg").exists()
    assert "drew" in shown.err


def test_peers_keep_one_order() -> None:
    assert peers_of("all", ("a", "b")) == ("a", "b")
    assert peers_of("none", ("a", "b")) == ()
    assert peers_of("b, a,b", ("a", "b")) == ("a", "b")
    for wrong in ("", "c", "a,all", "none,a"):
        with pytest.raises(UsageError, match="expected all, none or some of a, b"):
            peers_of(wrong, ("a", "b"))


def test_resume_refuses_results_of_another_gpu_or_other_options() -> None:
    here = Results({"gpu": "A", "nvcc": "13.0.88"}, Plan().to_json())
    before = Results(dict(here.environment), json.loads(json.dumps(here.options)), made_up().measurements)
    assert resumed(before, here).measurements == before.measurements
    with pytest.raises(UsageError, match="measured with gpu B, here it is A"):
        resumed(Results({"gpu": "B", "nvcc": "13.0.88"}, here.options), here)
    with pytest.raises(UsageError, match="other options"):
        resumed(Results(here.environment, Plan(seed=1).to_json()), here)
