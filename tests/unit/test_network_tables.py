"""Results of whole networks: the tables, the figures, the command without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cli.exit_codes import OK, USAGE
from cli.main import run
from cli.output.networks import network_table
from codegen.model_zoo import NETWORKS, lenet5, write_network
from farm.bench.layers.contenders import GENERATED
from farm.bench.layers.plots import plot
from farm.bench.layers.results import NETWORKS_KIND, Measurement, Results, write_results
from farm.bench.networks.summary import network_rows
from farm.cuda.measure.workload import CaseKey
from tests.unit.test_cli_output import shown

BREAKDOWN = {
    "total_microseconds": 900.0,
    "compiled": 0.8,
    "rest": 0.15,
    "gaps": 0.05,
    "layer_microseconds": {"layer4.0.conv1": 400.0, "fc": 90.0},
}
DENSE = {
    "eager-fp32": 2000.0,
    "compile-fp32": 1800.0,
    "eager-tf32": 900.0,
    "compile-tf32": 950.0,
    "eager-fp16": 450.0,
    "compile-fp16": None,
}


def made_up() -> Results:
    measurements = []
    for batch in (1, 64):
        case = CaseKey("resnet18", batch, 0.9, "float32")
        facts = {"images_per_second": 1e6 * batch / 900, "top1": 1.0, "breakdown": BREAKDOWN}
        measurements.append(Measurement(case, GENERATED, 900.0, relative_error=3e-7, facts=facts))
        for contender, time in DENSE.items():
            measurements.append(Measurement(case, contender, time, "" if time else "out of GPU memory"))
    environment = {"gpu": "NVIDIA Made-Up", "date": "2026-11-22T12:00:00+00:00"}
    return Results(environment, {"kind": NETWORKS_KIND}, tuple(measurements))


def test_the_fastest_dense_network_of_each_precision_is_compared_with() -> None:
    row = network_rows(made_up())[0]
    assert {precision: each.contender for precision, each in row.dense.items()} == {
        "fp32": "compile-fp32",
        "tf32": "eager-tf32",
        "fp16": "eager-fp16",
    }
    assert [row.speedup(precision) for precision in ("fp32", "tf32", "fp16")] == [2.0, 1.0, 0.5]


def test_the_table_fits_a_terminal() -> None:
    lines = shown(network_table(network_rows(made_up()), 100), 100)
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == [
        *("NETWORK", "N", "TYPE", "US", "IMAGES/S", "FP32", "TF32", "FP16"),
        *("COMPILED", "REST", "GAPS", "ERROR", "TOP-1"),
    ]
    assert lines[2].split() == [
        *("resnet18", "64", "f32", "900", "71,111", "2.00x", "1.00x", "0.50x"),
        *("80%", "15%", "5%", "3e-07", "100%"),
    ]


def test_a_file_of_networks_is_shown_and_drawn_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path / "r.json", made_up())
    assert run(["bench", "plot", str(tmp_path / "r.json"), str(tmp_path / "figures")]) == OK
    shown = capsys.readouterr().out
    assert "resnet18 at batch 1, float32: slowest layers layer4.0.conv1 44%, fc 10%" in shown
    assert "no time of compile-fp16 of resnet18 at batch 1, float32; resnet18 at batch 64" in shown
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{suffix}" for name in ("speedup-networks", "time-networks") for suffix in ("svg", "png")
    }


def test_a_network_without_dense_ones_beside_it_has_no_bars(tmp_path: Path) -> None:
    results = made_up()
    alone = replace(results, measurements=tuple(each for each in results.measurements if each.contender == GENERATED))
    assert {path.stem for path in plot(alone, tmp_path / "alone")} == {"time-networks"}
    single = replace(alone.measurements[0], case=replace(alone.measurements[0].case, operator="unet"))
    both = replace(results, measurements=(*results.measurements, single))
    drawn = [path.read_text() for path in plot(both, tmp_path / "both") if path.suffix == ".svg"]
    assert ["unet" in each for each in drawn] == [False, True]


def test_invalid_options_are_reported_before_a_gpu_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = tmp_path / "net.onnx"
    write_network(path, lenet5(0.9, 0))
    for arguments, said in (
        (["resnet7"], "resnet7 is neither an ONNX file nor a demo network: give the path of a file, or one of"),
        (["lenet5", "--precision", "int8"], "'int8' is not one of 'float32', 'float16'"),
        ([str(path), "--precision", "float16"], "net.onnx is a file with its own data type"),
        ([str(path), str(path)], "net is given twice"),
        (
            ["lenet5", "--peers", "tensorrt"],
            "--peers tensorrt: unknown peer: expected all, none or some of eager, compile",
        ),
        (["lenet5", "--batch", "0"], "--batch 0"),
        (["lenet5", "--bundle", str(tmp_path)], "is not a bundle"),
    ):
        assert run(["bench", "network", *arguments]) == USAGE, arguments
        assert said in capsys.readouterr().err


def test_demo_networks_exist_in_half_precision(tmp_path: Path) -> None:
    from codegen.frontend.onnx.reader import read_checkpoint
    from codegen.model_zoo import in_float16

    for name in ("lenet5", "mobilenet_v2"):
        write_network(tmp_path / "net.onnx", in_float16(NETWORKS[name](0.9, 0)))
        layers = read_checkpoint(tmp_path / "net.onnx").layers
        assert layers
        assert {layer.spec.data_type for layer in layers} == {"float16"}


def test_the_results_file_is_json_that_reads_back(tmp_path: Path) -> None:
    write_results(tmp_path / "r.json", made_up())
    assert json.loads((tmp_path / "r.json").read_text())["options"] == {"kind": "networks"}


def run_without_torch(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a Python in which it cannot be imported, as where it is not installed."""
    hidden = f"import sys; sys.modules['torch'] = None; {program}"
    environment = {**os.environ, "XDG_DATA_HOME": str(folder)}
    return subprocess.run([sys.executable, "-c", hidden], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import farm.torch", "ModuleNotFoundError: PyTorch is missing here"),
        (
            "from cli.main import run; sys.exit(run(['bench', 'network', 'lenet5', '--local']))",
            "farm: whole networks are measured in PyTorch: PyTorch is missing here",
        ),
    ],
)
def test_without_torch_the_way_to_get_it_is_named(program: str, said: str, tmp_path: Path) -> None:
    done = run_without_torch(program, tmp_path)
    assert done.returncode == (USAGE if "bench" in program else 1)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(said)
    assert last.endswith("in a checkout of this program, make torch")
