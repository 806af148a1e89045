"""`farm compile` and what comes after it, as typed: real tools, no Ray, one farm for the whole file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import ModelProto

from cli.main import run
from codegen.ir.layer_spec import Conv2d, Linear
from codegen.model_zoo import TEN_OPERATORS, operator_network, write_network
from codegen.model_zoo.builder import NetworkBuilder
from farm.config.settings import load_settings
from farm.jobs.model import Status
from farm.ledger import Ledger, open_ledger
from tests.house.tree import ROOT
from tests.samples import cut_in_two

SLOW_TO_BUILD = Conv2d(64, 24, 24, 64, 3, 3, padding=(1, 1, 1, 1))
ARCHS = "sm_80,sm_90"

Farm = Callable[..., tuple[int, str, str]]
"""Runs the arguments of one command line; gives the exit code, stdout and stderr."""


def digits() -> ModelProto:
    """Like LeNet-5, but quick to compile, and with a layer that is skipped."""
    net = NetworkBuilder(0.95, seed=0)
    x = net.max_pool(net.conv("conv1", "input", TEN_OPERATORS["lenet-conv1"]), 2, 2)
    x = net.max_pool(net.conv("conv2", x, TEN_OPERATORS["lenet-conv2"]), 2, 2)
    x = net.conv("conv3", x, Conv2d(50, 4, 4, 16, 3, 3, padding=(-1, 0, 0, 0)))
    net.gemm("fc", net.flatten(x), Linear(32, 10))
    return net.model("digits", (1, 28, 28), (10,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("farm")
    write_network(folder / "digits.onnx", digits())
    (folder / "broken.onnx").write_bytes(b"this is no model")
    return folder


@pytest.fixture(autouse=True)
def own_farm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("FARM_EXECUTOR", "inline")
    monkeypatch.setenv("FARM_RUNTIME_DIR", str(folder / "run"))  # no test waits for cores that others have
    monkeypatch.chdir(folder)


@pytest.fixture
def farm(capsys: pytest.CaptureFixture[str]) -> Farm:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def compiled(farm: Farm) -> str:
    """The id of a job that has compiled digits.onnx, at the first use or from the cache."""
    code, out, err = farm("compile", "digits.onnx", "--arch", ARCHS, "--json")
    assert code == 0, err
    return str(json.loads(out)["jobs"][0]["id"])


def only_warnings(err: str) -> bool:
    """Whether stderr has the warnings of a network that is not compiled whole, and nothing else."""
    lines = err.splitlines()
    return any("1 of 4 layers are skipped" in line for line in lines) and all(
        line.startswith("warning: ") for line in lines
    )


def ledger() -> Ledger:
    return open_ledger(load_settings())


def test_a_compile_shows_its_layers_and_a_second_one_only_hits(
    farm: Farm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = farm("compile", "digits.onnx", "--arch", "80", "--arch", "9.0", "--name", "twice")
    assert code == 0, err
    assert "twice  job" in out
    assert "20x12x12 -> 50, 5x5" in out
    assert "32 -> 10" in out
    assert "skipped conv3 (Conv)" in out
    assert len(re.findall(r"sm_90 +built", out)) == 3
    # Nothing listens there: a request for a worker would fail.
    monkeypatch.setenv("FARM_RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("FARM_EXECUTOR", "ray")
    code, out, err = farm("compile", "digits.onnx", "--arch", ARCHS)
    assert code == 0, err
    assert "nothing to compile: 6 of 6 cubins from the cache (100% hits)" in out
    assert only_warnings(err)


def test_json_is_the_only_output_of_a_compile(farm: Farm, compiled: str) -> None:
    code, out, err = farm("compile", "digits.onnx", "--arch", ARCHS, "--json")
    document = json.loads(out)
    assert code == 0
    assert set(document) == {"submission", "seconds", "jobs"}
    assert document["jobs"][0]["hits"] == document["jobs"][0]["total"] == 6
    assert only_warnings(err)


def test_the_same_file_twice_is_one_job(farm: Farm, compiled: str) -> None:
    _, out, _ = farm("compile", "digits.onnx", "digits.onnx", "--arch", ARCHS, "--json")
    assert len(json.loads(out)["jobs"]) == 1


def test_status_has_the_newest_job_first(farm: Farm, compiled: str) -> None:
    code, out, _ = farm("status", "--json", "--state", "succeeded", "-n", "1", "--arch", "80")
    assert code == 0
    assert [job["id"] for job in json.loads(out)["jobs"]] == [compiled]
    assert compiled[:8] in farm("status")[1]
    assert "no matching jobs" in farm("status", "--model", "nothing like it")[1]


def test_inspect_takes_latest_and_the_beginning_of_an_id(farm: Farm, compiled: str) -> None:
    for name in ("latest", compiled, compiled[:9]):
        code, out, _ = farm("inspect", name)
        assert code == 0
        assert out.startswith(f"job {compiled}  digits  SUCCEEDED")
        assert "FMAS KEPT" in out
    layers = json.loads(farm("inspect", "--json")[1])["layers"]
    assert list(dict.fromkeys(layer["name"] for layer in layers)) == ["conv1", "conv2", "fc"]
    assert all(cubin["registers"] > 0 for layer in layers for cubin in layer["cubins"])


def test_a_quiet_compile_prints_nothing(farm: Farm, compiled: str, tmp_path: Path) -> None:
    arguments = ("compile", "digits.onnx", "--arch", ARCHS, "-q", "-o", str(tmp_path / "bundle"))
    assert farm(*arguments) == (0, "", "")
    assert (tmp_path / "bundle" / "manifest.json").is_file()


def test_a_compile_does_not_start_where_its_bundle_cannot_be_written(farm: Farm, compiled: str, tmp_path: Path) -> None:
    jobs = len(json.loads(farm("status", "--json")[1])["jobs"])
    (tmp_path / "file").touch()
    farm("fetch", compiled, "-o", str(tmp_path / "bundle"))
    for name, options, reason in (
        ("file", (), "is a file"),
        ("bundle", ("--name", "other"), "is the bundle of digits"),
    ):
        code, _, err = farm("compile", "digits.onnx", "--arch", ARCHS, *options, "-o", str(tmp_path / name))
        assert (code, len(err.splitlines())) == (2, 1)
        assert reason in err
    assert len(json.loads(farm("status", "--json")[1])["jobs"]) == jobs


def test_an_ambiguous_beginning_names_its_jobs(farm: Farm, compiled: str) -> None:
    farm("compile", "digits.onnx", "--arch", ARCHS, "-q")
    code, _, err = farm("inspect", "")
    assert code == 2
    assert compiled in err


def test_logs_end_with_how_the_job_ended(farm: Farm, compiled: str) -> None:
    code, out, _ = farm("logs", compiled, "--follow")
    assert code == 0
    assert out.splitlines()[-1].endswith("succeeded")


def test_a_bundle_may_be_fetched_again_but_not_over_other_files(farm: Farm, compiled: str, tmp_path: Path) -> None:
    for _ in range(2):
        code, out, _ = farm("fetch", compiled, "-o", str(tmp_path / "bundle"))
        assert (code, out) == (0, f"{tmp_path / 'bundle' / 'manifest.json'}: 6 cubins\n")
    assert (tmp_path / "bundle" / "conv1" / "sm_90.cubin").read_bytes()[:4] == b"\x7fELF"
    (tmp_path / "bundle" / "mine.txt").touch()
    code, _, err = farm("fetch", compiled, "-o", str(tmp_path / "bundle"))
    assert code == 2
    assert "mine.txt" in err


def test_compile_fetches_too(farm: Farm, compiled: str, tmp_path: Path) -> None:
    code, out, _ = farm("compile", "digits.onnx", "--arch", ARCHS, "-o", str(tmp_path / "bundle"))
    assert code == 0
    assert out.splitlines()[-1] == f"bundle: {tmp_path / 'bundle' / 'manifest.json'}"
    assert len(list(tmp_path.rglob("*.cubin"))) == 6


def test_verify_finds_every_layer_right(farm: Farm, compiled: str) -> None:
    code, out, _ = farm("verify", compiled)
    assert code == 0, out
    assert "PASS: all 3 layers are within tolerance" in out


def test_a_layer_above_the_allowed_code_size_is_skipped_and_the_others_compile(farm: Farm) -> None:
    code, out, err = farm("compile", "digits.onnx", "--arch", "sm_90", "--max-code-size", "20KB")
    assert code == 0, err
    assert "skipped conv2 (Conv): its code would be" in out
    assert "at most 20 KB of code in a layer" in farm("inspect")[1]
    assert [layer["name"] for layer in json.loads(farm("inspect", "--json")[1])["layers"]] == ["conv1", "fc"]


def test_a_layer_in_parts_is_one_line_wherever_it_is_shown(
    farm: Farm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_in_two(monkeypatch)
    write_network(folder / "cut.onnx", operator_network(Conv2d(8, 8, 8, 8, 3, 3), 0.9, seed=0))
    code, out, err = farm("compile", "cut.onnx", "--arch", ARCHS)
    assert code == 0, err
    assert "PARTS" in out
    assert "compiled 4 cubins and 1 template" in out
    assert "part 2 of 2: rewrite" in err
    for command in ("inspect", "verify"):
        code, out, _ = farm(command)
        assert code == 0
        assert "PARTS" in out
    assert "PASS: the layer is within tolerance" in out
    assert {layer["parts"] for layer in json.loads(farm("verify", "--json")[1])["layers"]} == {2}


def test_an_unknown_architecture_is_refused_before_anything_is_submitted(farm: Farm, compiled: str) -> None:
    before = ledger().counts()
    for arch in ("sm_12", "hopper", ","):
        code, out, err = farm("compile", "digits.onnx", "--arch", arch)
        assert (code, out) == (2, "")
        assert "sm_75, sm_80" in err
    assert ledger().counts() == before


def test_a_file_that_cannot_be_read_stops_the_others_unless_told_to_go_on(farm: Farm, compiled: str) -> None:
    before = ledger().counts()
    code, out, err = farm("compile", "broken.onnx", "digits.onnx", "--arch", ARCHS)
    assert (code, out) == (2, "")
    assert err.startswith("farm: broken.onnx: ")
    assert ledger().counts() == before
    code, out, err = farm("compile", "broken.onnx", "digits.onnx", "--arch", ARCHS, "--keep-going")
    assert code == 2
    assert err.startswith("farm: broken.onnx: ")
    assert "6 of 6 cubins from the cache" in out


def test_strict_refuses_a_network_with_a_skipped_layer(farm: Farm) -> None:
    code, _, err = farm("compile", "digits.onnx", "--arch", ARCHS, "--strict")
    assert code == 2
    assert "conv3 (Conv)" in err


def test_a_read_only_store_ends_a_compile_in_words(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_READ_ONLY", "1")
    code, _, err = farm("compile", "digits.onnx", "--arch", "sm_75")
    assert code == 32
    assert "read-only" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "terminated"])
def test_an_interruption_puts_the_job_back_and_the_same_command_finishes_it(
    farm: Farm, folder: Path, number: signal.Signals
) -> None:
    name = f"slow-{number.name}"
    # A shape that no other test uses: the store has nothing of it, and the job takes seconds.
    shape = replace(SLOW_TO_BUILD, output_channels=64 + number)
    write_network(folder / f"{name}.onnx", operator_network(shape, 0.5, seed=number))
    arguments = ("compile", f"{name}.onnx", "--arch", ARCHS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "cli.main", *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as typed:
        job = _running(name, within_seconds=30)
        typed.send_signal(number)
        out, err = typed.communicate(timeout=20)
    assert typed.returncode == 130
    assert not out
    assert "Traceback" not in err
    assert f"interrupted: job {job[:8]} ({name}) is PENDING" in err
    assert "run farm compile again" in err
    assert farm("fetch", job)[0] == 101
    code, out, err = farm(*arguments, "--json")
    assert code == 0, err
    finished = json.loads(out)["jobs"][0]
    assert (finished["id"], finished["status"], finished["tries"]) == (job, "SUCCEEDED", 2)


def _running(name: str, *, within_seconds: float) -> str:
    """Waits for the job of that name to be at work; gives its id."""
    over = time.monotonic() + within_seconds
    while time.monotonic() < over:
        jobs = ledger().jobs(states=[Status.RUNNING], name=name)
        if jobs and jobs[0].stage:
            return jobs[0].id
        time.sleep(0.05)
    raise TimeoutError(f"no job {name} runs")


def test_one_cubin_is_singular_in_every_message(farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.onnx"
    write_network(path, operator_network(Conv2d(8, 8, 8, 8, 1, 1), 0.8, seed=5))
    options = ("--arch", "sm_80", "--batch", "1")
    assert "0 of 1 cubin found" in farm("compile", str(path), *options)[2]
    assert "planned: 1 template, 1 cubin\n" in farm("logs")[1]
    assert "nothing to compile: the cubin is in the store" in farm("plan", str(path), *options)[1]
    monkeypatch.setenv("FARM_READ_ONLY", "1")
    code, out, err = farm("compile", str(path), "--arch", "sm_86", "--batch", "1")
    assert (code, "one: 1 of 1 cubin failed: " in out + err) == (32, True)
