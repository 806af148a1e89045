"""`farm qualify` as users see it: exit codes, JSON, records in the ledger and in a file."""

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
from farm.qualification.qualify import QualificationEvent, QualificationPlan, ShapeResult, Started, Tally
from farm.qualification.record import QualificationRecord

STARTED = Started("NVIDIA Made-Up", "sm_90", "13.0", "13.0.88", ("float32",), 2000)
GOOD = Tally(layers=1200, outputs=50_000, shapes=60, refused=Counter({"five pointers": 48}))


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(self: device.Device) -> None:
        raise DeviceError("no GPU can be used here: run this on a machine with one")

    monkeypatch.setattr(device.Device, "__init__", missing)
    monkeypatch.setenv("FARM_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{tmp_path / 'farm.db'}")


def play(monkeypatch: pytest.MonkeyPatch, *found: Tally, evidence: tuple[tuple[str, bytes], ...] = ()) -> None:
    """Substitutes results for the GPU, one per shape."""

    def work(settings: Settings, plan: QualificationPlan) -> Generator[QualificationEvent, None, None]:
        yield STARTED
        for number, tally in enumerate(found):
            yield ShapeResult(f"float32 {number}", "float32", tally, evidence)

    monkeypatch.setattr("farm.qualification.qualify.qualification_work", work)


def records_here() -> list[QualificationRecord]:
    with closing(open_ledger(load_settings())) as ledger:
        return ledger.qualifications.records()


def test_without_a_gpu_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["qualify"]) == UNREACHABLE
    assert "run this on a machine with one" in capsys.readouterr().err
    assert records_here() == []


def test_enough_equal_layers_qualify_and_are_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, GOOD, GOOD)
    assert run(["qualify", "-o", str(tmp_path / "records.json")]) == OK
    shown = capsys.readouterr().out
    assert "PASS" in shown
    assert "96 layers left to ptxas: five pointers" in shown
    assert "qualified: farm compile now assembles sm_90 directly, without ptxas 13.0.88" in shown
    [record] = records_here()
    assert record.passed
    assert (record.layers, record.outputs, record.refused, record.wrong) == (2400, 100_000, 96, 0)
    assert read_records((tmp_path / "records.json").read_text(), "records.json") == (record,)
    assert f"to qualify sm_90 for everyone, send the project {tmp_path / 'records.json'}\n" in shown


def test_a_pass_prints_the_records_to_send_upstream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, GOOD)
    assert run(["qualify"]) == OK
    _, _, printed = capsys.readouterr().out.partition("send the project these records:\n")
    assert read_records(printed, "printed") == tuple(records_here())
    play(monkeypatch, Tally(layers=24, outputs=100, shapes=1))
    assert run(["qualify"]) == UNFINISHED
    assert "send the project" not in capsys.readouterr().out


def test_a_run_ends_after_five_minutes_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[QualificationPlan] = []

    def work(settings: Settings, plan: QualificationPlan) -> Generator[QualificationEvent, None, None]:
        plans.append(plan)
        yield STARTED

    monkeypatch.setattr("farm.qualification.qualify.qualification_work", work)
    run(["qualify"])
    run(["qualify", "--budget", "1h"])
    assert [plan.seconds for plan in plans] == [300, 3600]


def test_an_inconclusive_run_does_not_replace_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Tally(layers=24, outputs=100, shapes=1)
    play(monkeypatch, short)
    assert run(["qualify", "-q"]) == UNFINISHED
    play(monkeypatch, GOOD)
    assert run(["qualify", "-q"]) == OK
    play(monkeypatch, short)
    assert run(["qualify", "-q"]) == UNFINISHED
    assert [(record.passed, record.layers) for record in records_here()] == [(True, GOOD.layers)]


def test_unwritable_outputs_are_reported_before_the_gpu_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, GOOD)
    (tmp_path / "a-file").touch()
    for option, place in (("--output", tmp_path), ("-o", tmp_path / "no" / "file"), ("--keep", tmp_path / "a-file")):
        assert run(["qualify", option, str(place)]) == USAGE
        assert f"{place}" in capsys.readouterr().err
    assert records_here() == []


def test_an_interrupted_run_records_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(settings: Settings, plan: QualificationPlan) -> Generator[QualificationEvent, None, None]:
        yield STARTED
        raise KeyboardInterrupt

    monkeypatch.setattr("farm.qualification.qualify.qualification_work", work)
    assert run(["qualify"]) == INTERRUPTED
    assert "interrupted: nothing is recorded. --budget" in capsys.readouterr().err


def test_a_difference_fails_and_is_named_and_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, GOOD)
    assert run(["qualify", "-q"]) == OK
    play(monkeypatch, GOOD, Tally(layers=24, wrong=("float32 1:3: 2 of 9 outputs differ",)), evidence=(("a", b"code"),))
    assert run(["qualify", "--keep", str(tmp_path / "kept")]) == JOB_FAILED
    assert "float32 1:3: 2 of 9 outputs differ" in capsys.readouterr().out
    assert (tmp_path / "kept" / "a").read_bytes() == b"code"
    assert [record.passed for record in records_here()] == [False]


def test_too_few_layers_qualify_nothing_and_name_the_minimum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, Tally(layers=24, outputs=100, shapes=1))
    assert run(["qualify", "--json"]) == UNFINISHED
    [found] = json.loads(capsys.readouterr().out)["data_types"]
    assert (found["qualified"], found["layers"], found["wrong"]) == (False, 24, [])
    assert run(["qualify"]) == UNFINISHED
    assert "1,000 layers are needed" in capsys.readouterr().out
