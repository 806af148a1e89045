"""`farm tune` and `farm tuning`: exit codes, one JSON document, files imported whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.exit_codes import INTERRUPTED, JOB_FAILED, OK, UNREACHABLE, USAGE
from cli.main import run
from codegen.errors import DeviceError
from codegen.ir.tiling import Tiling
from codegen.selection.choose import choose_tiling
from farm.config.settings import load_settings
from farm.cuda import device
from farm.ledger import open_ledger
from farm.tuning.files import text_of
from farm.tuning.search import tune
from farm.tuning.search.candidates import serial_ranker
from tests.benchmarks.cost_model.points import points_of
from tests.samples import SMALL, fixed_toolchain, layer
from tests.tuning_samples import GPU, PlayedBuilder, PlayedRig, record

TILING = choose_tiling(SMALL, 64, layer().weights.nonzeros_per_output)
TUNE = ["tune", "--op", "lenet-conv1,lenet-conv2", "--batch", "1", "--candidates", "3"]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(self: device.Device) -> None:
        raise DeviceError("no GPU can be used here: run this on a machine with one")

    monkeypatch.setattr(device.Device, "__init__", missing)
    monkeypatch.setenv("FARM_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{tmp_path / 'farm.db'}")


def play(monkeypatch: pytest.MonkeyPatch, rig: PlayedRig) -> PlayedRig:
    """Makes the rig the GPU."""
    monkeypatch.setattr(tune, "Device", lambda: nullcontext(SimpleNamespace(arch="sm_90")))
    monkeypatch.setattr(tune, "GpuRig", lambda _: rig)
    monkeypatch.setattr(tune, "KernelPool", lambda *_, **__: nullcontext(PlayedBuilder()))
    monkeypatch.setattr(tune, "find_toolchain", lambda *_: None)
    monkeypatch.setattr(tune, "known_toolchain", lambda *_: fixed_toolchain())
    return rig


def records_here() -> list[Any]:
    with closing(open_ledger(load_settings())) as ledger:
        return ledger.tuning.records()


def test_without_a_gpu_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TUNE) == UNREACHABLE
    assert "run this on a machine with one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to tune"),
        (["--op", "lenet"], "no such operator: lenet"),
        (["--op", "all", "--budget", "0"], "--budget 0"),
        (["--op", "all", "--budget", "soon"], "--budget soon"),
        (["--op", "all", "--batch", "0"], "--batch 0"),
        (["--op", "all", "--data-type", "int8"], "--data-type int8"),
        (["--layer", "conv1"], "--layer needs a model"),
        (["model.onnx", "--op", "all"], "--op cannot be combined with a model"),
        (["model.onnx"], "no such file"),
        (["lenet"], "a demo network: "),
        (["resnet18", "--data-type", "bfloat16"], "demo networks are float32 or float16"),
        (["resnet18", "--seconds", "0"], "--seconds"),
    ],
)
def test_invalid_options_are_usage_errors(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", *arguments]) == USAGE
    assert said in capsys.readouterr().err


def test_json_is_one_document_and_the_records_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, PlayedRig(lambda tiling: 10.0))
    assert run([*TUNE, "--json"]) == OK
    shown = json.loads(capsys.readouterr().out)["layers"]
    assert [(each["layer"], each["record"]["tried"], each["known"]) for each in shown] == [
        ("lenet-conv2", 3, False),
        ("lenet-conv1", 3, False),
    ]
    assert {each.gpu for each in records_here()} == {GPU}
    assert run([*TUNE, "--json"]) == OK
    assert all(each["known"] for each in json.loads(capsys.readouterr().out)["layers"])


def test_each_data_type_has_a_record_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, PlayedRig(lambda tiling: 10.0))
    assert run([*TUNE, "--data-type", "float16,float32"]) == OK
    assert sorted(each.key.spec.data_type for each in records_here()) == ["float16"] * 2 + ["float32"] * 2


def wrong_ones(count: int) -> Callable[[Tiling], bool]:
    seen: list[Tiling] = []

    def wrong(tiling: Tiling) -> bool:
        seen.append(tiling)
        return len(seen) <= count

    return wrong


def test_a_wrong_kernel_is_an_exit_code_and_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, PlayedRig(lambda tiling: 10.0, wrong=wrong_ones(1)))
    assert run(TUNE) == JOB_FAILED
    assert "wrong: lenet-conv2 batch 1, Tiling(" in capsys.readouterr().out
    assert len(records_here()) == 2


def test_ctrl_c_keeps_and_shows_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = PlayedRig(lambda tiling: 10.0)

    def interrupted(tiling: Tiling) -> float:
        if rig.case is not None and rig.case.key.operator == "lenet-conv1":
            raise KeyboardInterrupt
        return 10.0

    rig.time_of = interrupted
    play(monkeypatch, rig)
    assert run(TUNE) == INTERRUPTED
    shown = capsys.readouterr()
    assert "lenet-conv2" in shown.out
    assert "interrupted: 1 of 2 layers done; the same command continues" in shown.err
    assert len(records_here()) == 1


def test_exported_records_can_be_imported_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = open_ledger(load_settings())
    ledger.tuning.put(record(TILING))
    ledger.close()
    path = tmp_path / "records.jsonl"
    assert run(["tuning", "export", str(path)]) == OK
    assert run(["tuning", "export", "-"]) == OK
    assert path.read_text() == capsys.readouterr().out == text_of([record(TILING)])
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{tmp_path / 'other.db'}")
    assert run(["tuning", "import", str(path)]) == OK
    assert "1 record read, 1 new or better" in capsys.readouterr().out
    assert run(["tuning", "list", "--json"]) == OK
    assert [each["from"] for each in json.loads(capsys.readouterr().out)["records"]][:1] == ["ledger"]
    assert run(["tuning", "list"]) == OK
    assert GPU.removeprefix("NVIDIA ") in capsys.readouterr().out


def test_a_file_with_one_invalid_record_imports_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.jsonl").write_text(text_of([record(TILING), replace(record(TILING, batch=1), tried=-1)]))
    assert run(["tuning", "import", str(tmp_path / "bad.jsonl")]) == USAGE
    assert "nothing was imported" in capsys.readouterr().err
    assert records_here() == []


@pytest.mark.parametrize("arguments", [["import", "none.json"], ["export", "/no/such/folder/file.json"]])
def test_an_unusable_file_is_a_usage_error(arguments: list[str]) -> None:
    assert run(["tuning", *arguments]) == USAGE


def test_force_tunes_layers_that_have_a_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, PlayedRig(lambda tiling: 10.0))
    assert run([*TUNE, "--json"]) == OK
    capsys.readouterr()
    assert run([*TUNE, "--force", "--json"]) == OK
    assert not any(each["known"] for each in json.loads(capsys.readouterr().out)["layers"])


def test_a_demo_network_can_be_tuned_and_json_has_its_measurements(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = play(monkeypatch, PlayedRig(lambda tiling: 10.0))
    command = ["tune", "lenet5", "--batch", "2", "--data-type", "float16,float32", "--candidates", "2", "--json"]
    assert run(command) == OK
    shown = json.loads(capsys.readouterr().out)["layers"]
    types = {each["measured"]["spec"]["data_type"] for each in shown}
    assert types == {"float16", "float32"}
    assert [len(each["measured"]["kernels"]) for each in shown] == [2] * len(shown)
    assert all(each["record"]["cold_microseconds"] == 10.0 for each in shown)
    points = list(points_of({"layers": shown}, "lenet5"))
    assert len(points) == 2 * len(shown)
    assert {point.tiling for point in points} == set(rig.measured)
    assert {point.cold_microseconds for point in points} == {10.0}


def test_layers_without_time_are_counted_and_are_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, PlayedRig(lambda tiling: 10.0))
    ticks = count()
    monkeypatch.setattr(tune.time, "monotonic", lambda: float(next(ticks)))
    monkeypatch.setattr(tune.tune_on, "__defaults__", (tune.time.monotonic,))
    monkeypatch.setattr(
        tune, "ParallelRanker", lambda processes: serial_ranker
    )  # a pool of processes asks that clock too
    assert run([*TUNE[:-2], "--seconds", "3"]) == OK
    shown = capsys.readouterr().out
    assert "no time left for 1 layer: run the same command again" in shown
    assert len(records_here()) == 1
