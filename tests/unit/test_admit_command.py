"""`farm admit` as a user meets it: exit codes, one JSON document, records kept and written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from cli.exit_codes import INTERRUPTED, JOB_FAILED, OK, UNFINISHED, UNREACHABLE, USAGE
from cli.main import run
from codegen.errors import DeviceError
from farm.config.settings import Settings, load_settings
from farm.cuda import device
from farm.ledger import open_ledger
from farm.qualification.files import read_records
from farm.qualification.record import AdmissionRecord
from farm.qualification.run import Started, TrialEvent, TrialPlan, Tried, TriedShape

STARTED = Started("NVIDIA Made-Up", "sm_90", "13.0", "13.0.88", ("float32",), 2000)
GOOD = Tried(layers=1200, outputs=50_000, shapes=60, refused=Counter({"five pointers": 48}))


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(self: device.Device) -> None:
        raise DeviceError("no GPU can be used here: run this on a machine with one")

    monkeypatch.setattr(device.Device, "__init__", missing)
    monkeypatch.setenv("FARM_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{tmp_path / 'farm.db'}")


def play(monkeypatch: pytest.MonkeyPatch, *found: Tried, evidence: tuple[tuple[str, bytes], ...] = ()) -> None:
    """These are what the GPU finds, shape by shape."""

    def work(settings: Settings, plan: TrialPlan) -> Generator[TrialEvent, None, None]:
        yield STARTED
        for number, tried in enumerate(found):
            yield TriedShape(f"float32 {number}", "float32", tried, evidence)

    monkeypatch.setattr("farm.qualification.qualify.trial_work", work)


def records_here() -> list[AdmissionRecord]:
    with closing(open_ledger(load_settings())) as ledger:
        return ledger.admissions.records()


def test_without_a_gpu_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admit"]) == UNREACHABLE
    assert "run this on a machine with one" in capsys.readouterr().err
    assert records_here() == []


def test_enough_layers_without_a_difference_are_admitted_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, GOOD, GOOD)
    assert run(["admit", "-o", str(tmp_path / "records.json")]) == OK
    shown = capsys.readouterr().out
    assert "PASS" in shown
    assert "96 layers left to ptxas: five pointers" in shown
    assert "admitted: farm compile assembles sm_90 without ptxas 13.0.88" in shown
    [record] = records_here()
    assert record.passed
    assert (record.layers, record.outputs, record.refused, record.wrong) == (2400, 100_000, 96, 0)
    assert read_records((tmp_path / "records.json").read_text(), "records.json") == (record,)


def test_a_trial_that_is_too_short_takes_back_no_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Tried(layers=24, outputs=100, shapes=1)
    play(monkeypatch, short)
    assert run(["admit", "-q"]) == UNFINISHED
    play(monkeypatch, GOOD)
    assert run(["admit", "-q"]) == OK
    play(monkeypatch, short)
    assert run(["admit", "-q"]) == UNFINISHED
    assert [(record.passed, record.layers) for record in records_here()] == [(True, GOOD.layers)]


def test_where_results_cannot_be_written_is_said_before_the_gpu_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, GOOD)
    (tmp_path / "a-file").touch()
    for option, place in (("--output", tmp_path), ("-o", tmp_path / "no" / "file"), ("--keep", tmp_path / "a-file")):
        assert run(["admit", option, str(place)]) == USAGE
        assert f"{place}: it " in capsys.readouterr().err
    assert records_here() == []


def test_an_interrupted_trial_says_that_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(settings: Settings, plan: TrialPlan) -> Generator[TrialEvent, None, None]:
        yield STARTED
        raise KeyboardInterrupt

    monkeypatch.setattr("farm.qualification.qualify.trial_work", work)
    assert run(["admit"]) == INTERRUPTED
    assert "interrupted: nothing is recorded; --budget" in capsys.readouterr().err


def test_a_difference_fails_is_named_and_is_kept_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, GOOD)
    assert run(["admit", "-q"]) == OK
    play(monkeypatch, GOOD, Tried(layers=24, wrong=("float32 1:3: 2 of 9 outputs differ",)), evidence=(("a", b"code"),))
    assert run(["admit", "--keep", str(tmp_path / "kept")]) == JOB_FAILED
    assert "float32 1:3: 2 of 9 outputs differ" in capsys.readouterr().out
    assert (tmp_path / "kept" / "a").read_bytes() == b"code"
    assert [record.passed for record in records_here()] == [False]


def test_too_few_layers_admit_nothing_and_say_how_many_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, Tried(layers=24, outputs=100, shapes=1))
    assert run(["admit", "--json"]) == UNFINISHED
    [found] = json.loads(capsys.readouterr().out)["data_types"]
    assert (found["admitted"], found["layers"], found["wrong"]) == (False, 24, [])
    assert run(["admit"]) == UNFINISHED
    assert "1,000 layers are needed" in capsys.readouterr().out
