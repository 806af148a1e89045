"""`farm plan` says what would be compiled and what that takes, and starts nothing."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from codegen.ir.layer_spec import Conv2d
from codegen.model_zoo import lenet5, operator_network, write_network
from codegen.toolchain.tools import find_toolchain


@pytest.fixture(autouse=True)
def own_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path / "lenet5.onnx", lenet5(0.9, 0))

    def start(*arguments: Any, **_: Any) -> None:
        raise AssertionError(f"a process was started: {arguments}")

    monkeypatch.setattr(subprocess, "Popen", start)


def test_a_plan_starts_no_process_and_leaves_nothing_in_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "lenet5.onnx", "--arch", "sm_80,sm_90", "--max-code-size", "100KB", "--json"]) == 0
    out, err = capsys.readouterr()
    assert not err
    document = json.loads(out)
    [model] = document["models"]
    assert {layer["name"] for layer in model["layers"]} == {"conv1", "conv2", "fc2"}
    assert [layer["name"] for layer in model["skipped"]] == ["fc1"]
    assert all("the limit is" in layer["reason"] for layer in model["skipped"])
    assert model["skipped"][0]["weights"] == 400_000
    coverage = model["coverage"]
    assert coverage["weights"] == 500 + 25_000 + 5_000
    assert coverage["weights_total"] == 500 + 25_000 + 400_000 + 5_000
    assert sum({layer["name"]: layer["share_of_weights"] for layer in model["layers"]}.values()) == pytest.approx(
        coverage["share_of_weights"]
    )
    assert model["gpus"] == {"sm_80": "A100", "sm_90": "H200"}
    for layer in model["layers"]:
        assert list(layer["predicted_kernel_microseconds"]) == layer["archs"]
        assert min(time for times in layer["predicted_kernel_microseconds"].values() for time in times.values()) > 1
    total = document["total"]
    assert (total["cubins_to_make"], total["cubins_in_store"], total["templates_in_store"]) == (6, 0, 0)
    assert min(total[f"predicted_{what}"] for what in ("code_bytes", "nvcc_seconds", "ptxas_seconds")) > 0
    assert not list((tmp_path / "data").rglob("v1"))


def test_a_plan_says_what_the_layers_take_dense_and_which_are_left_dense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = Conv2d(64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1))
    write_network(tmp_path / "dense.onnx", operator_network(spec, 0.1, 0))
    assert run(["plan", "dense.onnx", "--arch", "h100", "--allow-tf32"]) == 2
    err = capsys.readouterr().err
    assert re.search(r"no layer can be compiled: \S+ \(Conv\): faster dense, by prediction: [\d.]+ us in PyTorch", err)
    assert run(["plan", "dense.onnx", "--arch", "h100", "--allow-tf32", "--leave-dense", "never"]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"  the same layers dense in PyTorch: FP32 \d+ us \(\d.*x\), TF32 \d+ us \(.*x\), FP16 \d+ us \(.*x\)", out
    )
    assert run(["plan", "dense.onnx", "--arch", "h100", "--allow-tf32", "--leave-dense", "never", "--json"]) == 0
    [model] = json.loads(capsys.readouterr().out)["models"]
    assert not [layer for layer in model["skipped"] if layer["kind"] == "left dense"]
    assert all(min(layer["predicted_dense_microseconds"]["sm_90"]["64"].values()) > 1 for layer in model["layers"])


def test_a_plan_fits_a_screen_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["plan", "lenet5.onnx", "--arch", "sm_90"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["conv1", "conv2", "fc1", "fc2"]
    assert all(len(line) <= 80 for line in lines[:6])
    assert "4 layers compiled: 100.0% of 430.5K weights" in lines[6]


def test_a_plan_names_a_layer_once_and_tells_its_tilings_apart_by_architecture(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["plan", "lenet5.onnx", "--arch", "sm_80,sm_90"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()[1:]
    first = next(i for i, line in enumerate(lines) if line.startswith("fc1"))
    fc1 = lines[first : first + 2]  # sm_80 has no clusters
    assert [line[head.index("ARCHS") :].split()[0] for line in fc1] == ["80", "90"]
    assert [line.startswith("fc1") for line in fc1] == [True, False]
    assert fc1[1][: head.index("ARCHS")].strip() == ""


def test_a_plan_says_which_gpu_it_predicts_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "lenet5.onnx", "--arch", "rtx4090,sm_80,sm_90,sm_75", "--gpu", "a30"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("predicted for")]
    assert [line.partition(":")[0] for line in lines] == [
        "predicted for RTX 4090 (sm_89), scaled from H200 by data sheet",
        "predicted for A30 (sm_80), scaled from H200 by data sheet",
        "predicted for H200 (sm_90's typical GPU)",
        "predicted for T4 (sm_75's typical GPU), scaled from H200 by data sheet",
    ]
    assert len({line.partition("kernels ")[2] for line in lines}) == 4


def test_a_plan_says_what_shared_cubins_cost_the_other_gpus_in_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "lenet5.onnx", "--arch", "sm_80+"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("predicted for")]
    assert [line.partition(":")[0] for line in lines] == [
        "predicted for A100 (sm_80's typical GPU), scaled from H200 by data sheet",
        "predicted for RTX 3090 (sm_86) with the cubins of sm_80",
        "predicted for RTX 4090 (sm_89) with the cubins of sm_80",
    ]
    said = re.compile(r": kernels [0-9,]+ us at batch 64, \d\.\d\d times those of its own$")
    assert all(said.search(line) for line in lines[1:])
    assert run(["plan", "lenet5.onnx", "--arch", "sm_80+,sm_86", "--json"]) == 0
    [model] = json.loads(capsys.readouterr().out)["models"]
    assert model["archs"] == ["sm_80", "sm_86"]
    [shared] = model["shared"]
    assert (shared["arch"], shared["gpu"]) == ("sm_80", "RTX 4090")
    own = shared["predicted_kernel_microseconds_of_own_cubins"]
    assert shared["predicted_kernel_microseconds"] >= 0.99 * own > 0


def test_a_gpu_of_an_architecture_that_is_not_compiled_for_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "lenet5.onnx", "--arch", "sm_80", "--gpu", "rtx4090"]) != 0
    assert "RTX 4090 has another architecture: add --arch sm_89" in capsys.readouterr().err


def test_the_tools_files_say_of_them_what_they_say_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = find_toolchain()
    found = tools.facts_in_files()
    monkeypatch.undo()
    assert found is not None
    assert (found.nvcc_version, found.ptxas_version) == (tools.nvcc_version, tools.ptxas_version)
    assert set(tools.archs) <= set(found.archs)
    assert (found.cuda_root, found.compiler_digest) == (tools.cuda_root, tools.compiler_digest)


def test_part_of_a_longer_word_in_a_tools_file_is_no_architecture(tmp_path: Path) -> None:
    root = find_toolchain().cuda_root
    for name in ("nvvm", "include"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "bin").mkdir()
    for tool in ("nvcc", "ptxas"):
        (tmp_path / "bin" / tool).write_bytes(b"sm_80\0my_sm_91 sm_90x1 .sm_90a. release 13.0, V13.0.88")
        (tmp_path / "bin" / tool).chmod(0o755)
    found = find_toolchain(tmp_path / "bin" / "nvcc").facts_in_files()
    assert found is not None
    assert found.archs == ("sm_80", "sm_90a")


def test_a_script_in_place_of_a_tool_has_to_be_asked(tmp_path: Path) -> None:
    script = tmp_path / "nvcc"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (tmp_path / "ptxas").symlink_to(find_toolchain().ptxas)
    assert find_toolchain(script).facts_in_files() is None


def test_a_plan_prices_the_cpu_time_it_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "lenet5.onnx", "--arch", "sm_90", "--price", "3600 EUR/core-hour"]
    assert run([*command, "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["total"]["predicted_cost"]
    assert (cost["currency"], cost["saved"]) == ("EUR", 0)
    assert run(command) == 0
    assert f"), which costs {cost['spent']:,.2f} EUR" in capsys.readouterr().out
