"""The commands that inspect and clean the store, the ledger and jobs."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from cli.output.format import size
from farm.jobs.model import Status
from farm.ledger.running_jobs import Outlook
from farm.store.disk import DiskStore
from tests.store_contract import blob_name
from tests.unit.farmyard import Farmyard

Output = pytest.CaptureFixture[str]


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farmyard]:
    """A farm that the environment names too, with a job that succeeded."""
    monkeypatch.setenv("FARM_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{tmp_path / 'farm.db'}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("FARM_CONFIG", raising=False)
    farm = Farmyard(tmp_path)
    farm.store = DiskStore(tmp_path / "store")
    farm.run(farm.submit("one"))
    yield farm
    farm.ledger.close()


def document(arguments: str, capsys: Output, code: int = 0) -> Any:
    capsys.readouterr()
    assert run([*arguments.split(), "--json"]) == code
    out, err = capsys.readouterr()
    assert not err
    return json.loads(out)


def text(arguments: str, capsys: Output, code: int = 0) -> str:
    capsys.readouterr()
    assert run(arguments.split()) == code
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("cache ls --stage nope", 2, "Its stages: cubin, template, weights."),
        ("cache ls --stage cubin --namespace nope", 2, "namespace nope has no such entries. Its stages: none."),
        ("cache ls -n 3", 2, "--limit is for the entries of one stage: add --stage"),
        ("cache rm ../../../etc/passwd", 2, "is not a prefix of a key or digest"),
        ("cache rm abc", 2, "give 4 hex digits or more"),
        ("cache rm 0000000000", 102, "no key or digest that begins with 0000000000"),
        ("cache gc --older-than soon", 2, "--older-than soon: expected a duration such as 90d"),
        ("cache gc --max-size big", 2, "--max-size big: expected a size such as 500GB"),
        ("cache gc --grace 1h", 2, "Give at least 2 h"),
        ("stats --price 0.04", 2, "--price: invalid value '0.04': expected a price such as 0.04/core-hour"),
        ("db prune", 2, "Missing option '--older-than'"),
        ("db prune --older-than 59m", 2, "prune older ones"),
        ("explain latest", 2, "expected JOB/LAYER or JOB/LAYER/ARCH"),
        ("explain latest/nope", 102, "has no layer 'nope'"),
        ("explain zzz/conv1", 102, "no such job: 'zzz'"),
    ],
)
def test_a_users_error_is_one_line_with_the_way_out(
    farm: Farmyard, command: str, code: int, words: str, capsys: Output
) -> None:
    assert run(command.split()) == code
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("farm: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["cache rm {}", "cache rm {} --force", "cache gc", "cache verify --repair"])
def test_nothing_is_removed_from_a_read_only_store(
    farm: Farmyard, command: str, capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FARM_READ_ONLY", "1")
    key = farm.results(farm.ledger.job("latest").id)[0].cubin_key
    before = sorted((tmp_path / "store").rglob("*"))
    assert run(command.format(key).split()) == 32
    assert "read-only here: unset FARM_READ_ONLY to remove something" in capsys.readouterr().err
    assert sorted((tmp_path / "store").rglob("*")) == before


@pytest.mark.parametrize("command", ["cache ls", "cache verify", "cache gc --dry-run", "stats"])
def test_a_read_only_store_can_be_listed(
    farm: Farmyard, command: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_READ_ONLY", "1")
    assert run(command.split()) == 0


def test_the_store_is_listed_by_stage_and_a_stage_by_entries(farm: Farmyard, capsys: Output) -> None:
    stages = {each["stage"]: each for each in document("cache ls", capsys)["stages"]}
    assert {name: each["entries"] for name, each in stages.items()} == {"cubin": 4, "template": 2, "weights": 2}
    assert {name: each["needed"] for name, each in stages.items()} == {"cubin": 4, "template": 2, "weights": 2}
    entries = document("cache ls --stage cubin -n 3", capsys)["entries"]
    assert len(entries) == 3
    assert all(each["needed"] and each["bytes"] > 64 for each in entries)
    assert "STAGE" in text("cache ls", capsys)
    shown = text("cache ls --stage cubin -n 3", capsys)
    assert entries[0]["name"] in shown
    assert "and 1 more, used later: raise -n" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_store_without_entries_of_a_namespace_is_not_called_empty(farm: Farmyard, capsys: Output) -> None:
    shown = text("cache ls --namespace nope", capsys)
    assert shown == "no entries of the namespace nope: farm cache ls shows all\n"
    assert document("cache ls --namespace nope", capsys) == {"stages": []}


def test_an_empty_store_says_how_to_begin(
    farm: Farmyard, capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FARM_STORE", f"file://{tmp_path / 'nothing'}")
    assert "farm compile fills it" in text("cache ls", capsys)
    assert document("cache ls", capsys) == {"stages": [], "total_bytes": 0}
    assert document("cache gc", capsys)["freed_bytes"] == 0
    assert not (tmp_path / "nothing").exists()


def test_blobs_are_collected_once_their_job_is_pruned(farm: Farmyard, capsys: Output, tmp_path: Path) -> None:
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            os.utime(path, (1e9, 1e9))
    kept = document("cache gc --older-than 30d", capsys)
    assert (kept["records"], kept["blobs"], kept["kept_for_jobs"]) == ([], [], 6)
    list(farm.ledger.retention.prune(0))
    would = document("cache gc --older-than 30d --dry-run", capsys)
    assert "would remove 6 records and 8 blobs" in text("cache gc --older-than 30d --dry-run", capsys)
    gone = document("cache gc --older-than 30d", capsys)
    assert (sorted(gone["blobs"]), gone["left_bytes"]) == (sorted(would["blobs"]), 0)
    left = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert all("trash" in path.parts for path in left)
    assert gone["trashed_bytes"] == sum(path.stat().st_size for path in left)


def test_cache_verify_exits_with_39_until_damage_is_repaired(farm: Farmyard, capsys: Output, tmp_path: Path) -> None:
    assert "0 damaged" in text("cache verify", capsys)
    digest = str(farm.results(farm.ledger.job("latest").id)[0].cubin)
    (tmp_path / "store" / blob_name(digest)).write_bytes(b"wrong")
    assert document("cache verify", capsys, code=39)["damaged"] == [
        {"stage": "blob", "name": digest, "bytes": 5, "removed": False, "unsigned": False}
    ]
    assert f"damaged: blob {digest}, removed" in text("cache verify --repair", capsys)
    assert document("cache verify", capsys)["damaged"] == []


def test_statistics_count_from_zero(farm: Farmyard, capsys: Output) -> None:
    found = document("stats", capsys)
    assert (found["cubin"]["hits"], found["cubin"]["misses"], found["cubin"]["rate"]) == (0, 4, 0.0)
    assert (found["template"]["misses"], found["template"]["spent_seconds"]) == (2, 3.0)
    assert found["fmas_deleted"] == 360
    assert document("stats --zero", capsys)["cubin"]["rate"] is None
    farm.run(farm.submit("two"))
    again = document("stats", capsys)
    assert (again["cubin"]["hits"], again["cubin"]["rate"]) == (4, 1.0)
    assert again["since"] is not None
    assert "100.0%" in text("stats", capsys)


def test_statistics_price_the_time_spent_and_saved(
    farm: Farmyard, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.run(farm.submit("two"))
    plain = document("stats", capsys)
    assert plain["cost"] is None
    assert plain["spent_seconds"] == sum(plain[stage]["spent_seconds"] for stage in ("template", "skeleton", "cubin"))
    monkeypatch.setenv("FARM_PRICE", "$3600/core-hour")
    cost = document("stats", capsys)["cost"]
    assert (cost["price"], cost["currency"]) == ("$3600/core-hour", "$")
    assert cost["spent"] == pytest.approx(plain["spent_seconds"])
    assert cost["saved"] == pytest.approx(plain["saved_seconds"])
    assert cost["saved"] > 0
    assert f"(${cost['saved']:,.2f}) saved by the cache" in text("stats", capsys)
    assert document("stats --price 7200/core-hour", capsys)["cost"]["spent"] == pytest.approx(2 * cost["spent"])


def test_a_build_is_explained(farm: Farmyard, capsys: Output) -> None:
    first = farm.ledger.job("latest").id
    farm.run(farm.submit("two"))
    found = document("explain latest/conv1/sm_80", capsys)["explanations"]
    assert [(each["arch"], each["outcome"]) for each in found] == [("sm_80", "hit")]
    shown = text("explain latest/conv1", capsys)
    assert shown == f"sm_80, sm_90: hit\n  job {first} (one) built it for its layer conv1\n"


@pytest.mark.parametrize(
    ("status", "code"), [(Status.SUCCEEDED, 0), (Status.FAILED, 100), (Status.CRASHED, 32), (Status.CANCELLED, 103)]
)
def test_following_a_log_ends_with_the_job_and_its_code(
    farm: Farmyard, status: Status, code: int, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = farm.submit("followed")
    farm.ledger.claim_all([job_id], "c", 60)
    farm.ledger.add_event(job_id, "info", "first")
    looked = threading.Event()

    def end_after_the_first_look(_seconds: float) -> None:
        if not looked.is_set():
            looked.set()
            farm.ledger.add_event(job_id, "info", "last")
            farm.ledger.finish(job_id, status, "why")

    monkeypatch.setattr("cli.commands.logs.sleep", end_after_the_first_look)
    shown = text(f"logs -f {job_id}", capsys, code)
    assert looked.is_set()
    assert [line.split()[-1] for line in shown.splitlines()] == ["first", "last"]


def test_following_a_log_prints_the_progress_now_and_then(
    farm: Farmyard, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = farm.submit("followed")
    farm.ledger.claim_all([job_id], "c", 60)
    looks = [0]

    def go_on(_seconds: float) -> None:
        looks[0] += 1
        if looks[0] == 1:  # before, it was claimed and had not begun: nothing is said
            farm.ledger.running.set_stage([job_id], "assemble", holder="c")
            farm.ledger.running.set_outlooks({job_id: Outlook(2, 541.0)}, holder="c")
        elif looks[0] == 2:
            farm.ledger.finish(job_id, Status.SUCCEEDED, "")

    monkeypatch.setattr("cli.commands.logs.sleep", go_on)
    monkeypatch.setattr("cli.commands.logs.EVERY_SECONDS", 0.0)
    [line] = text(f"logs -f {job_id}", capsys).splitlines()
    assert line.endswith("info     0/4 cubins, 2 running, ~9 min left")


def test_ctrl_c_stops_following_not_the_job(farm: Farmyard, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    [job_id] = farm.submit("followed")
    monkeypatch.setattr("cli.commands.logs.sleep", interrupt)
    assert run(["logs", "-f", job_id]) == 130
    assert capsys.readouterr().err == ""
    assert farm.ledger.job(job_id).status is Status.PENDING


def test_a_log_has_the_date_and_the_time_of_each_event(farm: Farmyard, capsys: Output) -> None:
    lines = text("logs latest", capsys).splitlines()
    assert lines
    assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  info ", line) for line in lines)


def test_a_log_without_events_promises_some_only_of_a_job_that_has_not_ended(farm: Farmyard, capsys: Output) -> None:
    [job_id] = farm.submit("waits")
    capsys.readouterr()
    for ending in ("is PENDING and has no events yet\n", "is CANCELLED and has no events\n"):
        assert run(["logs", job_id]) == 0
        assert capsys.readouterr().err.endswith(ending)
        assert run(["cancel", job_id]) == 0
        capsys.readouterr()


def test_printing_a_log_exits_with_0_whatever_the_job_did(farm: Farmyard, capsys: Output) -> None:
    [job_id] = farm.submit("waits")
    assert run(["logs", job_id]) == 0


def test_sizes_are_shown_up_to_gigabytes() -> None:
    assert [size(each) for each in (812, 14_000, 3_200_000, 1_500_000_000)] == ["812 B", "14 KB", "3.2 MB", "1.5 GB"]


class Terminal(io.StringIO):
    """A terminal on which a person types."""

    def isatty(self) -> bool:
        return True


def cancel_all(*options: str, typed: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.stdin", typed)
    return run(["cancel", "--all", *options])


def test_cancelling_all_jobs_asks_first_with_their_number(
    farm: Farmyard, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    waiting = [*farm.submit("two"), *farm.submit("three")]
    assert cancel_all(typed=Terminal("n\n"), monkeypatch=monkeypatch) == 0
    out, err = capsys.readouterr()
    assert not out
    assert "Cancel 2 jobs (0 RUNNING, 2 PENDING)?" in err
    assert {farm.ledger.job(each).status for each in waiting} == {Status.PENDING}
    assert cancel_all(typed=Terminal("y\n"), monkeypatch=monkeypatch) == 0
    assert {farm.ledger.job(each).status for each in waiting} == {Status.CANCELLED}


def test_cancelling_all_jobs_without_a_terminal_needs_yes(
    farm: Farmyard, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    [waiting] = farm.submit("two")
    assert cancel_all(typed=io.StringIO("y\n"), monkeypatch=monkeypatch) == 2
    assert "--all would cancel 1 job (0 RUNNING, 1 PENDING): stdin is no terminal to confirm on. Add --yes." in (
        capsys.readouterr().err
    )
    assert farm.ledger.job(waiting).status is Status.PENDING
    assert cancel_all("--yes", "--json", typed=io.StringIO(), monkeypatch=monkeypatch) == 0
    assert [job["id"] for job in json.loads(capsys.readouterr().out)["jobs"]] == [waiting]


def test_cancelling_no_jobs_asks_nothing(farm: Farmyard, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    assert cancel_all(typed=io.StringIO(), monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "0 jobs cancelled\n"
