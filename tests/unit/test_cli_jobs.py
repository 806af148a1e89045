"""Commands about jobs over a real ledger: status, wait, fetch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.main import run
from farm.bundle.writer import bundle_targets
from farm.errors import UsageError
from farm.jobs.model import JobSet, Status
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Result, failed
from tests.unit.farmyard import Farmyard

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farmyard]:
    yard = Farmyard(tmp_path)
    monkeypatch.setenv("FARM_STORE", yard.settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", yard.settings.database_url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)
    yield yard
    yard.ledger.close()


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    def run_it(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run_it


def refuse_sm_90(request: Request) -> Result | None:
    bad = isinstance(request, CubinRequest) and request.arch == "sm_90"
    return failed(request, Failure(Fault.INPUT, f"ptxas says no to {request.key}")) if bad else None


def test_a_piped_status_has_one_line_per_job_and_counts_the_rest(yard: Farmyard, typed: Typed) -> None:
    yard.submit(*(f"a_very_long_name_of_a_network_{i:02}_{'x' * 60}" for i in range(28)))
    lines = typed("status")[1].splitlines()
    assert len(lines) == 1 + 1 + 20 + 1
    assert lines[-1] == "8 more: --all shows them"
    assert all("x" * 60 in line for line in lines[2:-1])
    assert "more" not in typed("status", "-n", "28")[1].splitlines()[-1]
    assert "more" not in typed("status", "--all")[1].splitlines()[-1]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_status_has_one_line_per_job_at_any_width(
    width: int, yard: Farmyard, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard.submit("short", "a_very_long_name_of_a_network_" + "x" * 60)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = typed("status")[1].splitlines()
    assert len(lines) == 1 + 1 + 2
    assert all(len(line) <= width for line in lines[1:])


def test_status_of_a_submission_shows_only_its_jobs_and_counts(yard: Farmyard, typed: Typed) -> None:
    yard.submit("a", "b")
    yard.submit("c")
    code, out, _ = typed("status", "--submission", "s-a", "--json")
    document = json.loads(out)
    assert code == 0
    assert [each["name"] for each in document["jobs"]] == ["b", "a"]
    assert (document["counts"], document["claimed"]) == ({"PENDING": 2}, 0)
    code, _, err = typed("status", "--submission", "nonsense")
    assert code == 102
    assert "no such submission: 'nonsense'" in err


def test_a_claimed_job_is_counted_and_shown_as_claimed(yard: Farmyard, typed: Typed) -> None:
    [job_id, _] = yard.submit("a", "b")
    assert yard.ledger.claim_all([job_id], "somebody", 60)
    out = typed("status")[1]
    assert "1 PENDING  1 CLAIMED  0 RUNNING" in out
    assert "CLAIMED" in next(line for line in out.splitlines() if line.startswith(job_id[:8]))
    document = json.loads(typed("status", "--json")[1])
    assert (document["counts"], document["claimed"]) == ({"PENDING": 1, "RUNNING": 1}, 1)
    yard.ledger.running.set_stage([job_id], "template", holder="somebody")
    assert "1 PENDING  1 RUNNING" in typed("status")[1]


def test_done_counts_finished_cubins_without_failed_ones(yard: Farmyard, typed: Typed) -> None:
    yard.run(yard.submit("a"), refuse_sm_90)
    line = typed("status")[1].splitlines()[2]
    assert "2/4" in line.split()


def test_wait_exits_with_the_code_of_the_worst_job(yard: Farmyard, typed: Typed) -> None:
    good, bad = yard.submit("good", "bad")
    yard.run([good])
    assert yard.ledger.finish(bad, Status.FAILED, "4 of 4 cubins failed")
    assert typed("wait", good, "-q") == (0, "", "")
    code, out, err = typed("wait", "--submission", "s-good")
    assert (code, err) == (100, "")
    assert out == f"{good}  good  SUCCEEDED\n{bad}  bad  FAILED  4 of 4 cubins failed\n"


def test_wait_exits_with_101_for_an_unfinished_job(yard: Farmyard, typed: Typed) -> None:
    done, waits, cancelled = yard.submit("done", "waits", "cancelled")
    yard.run([done])
    yard.ledger.cancel(JobSet(ids=(cancelled,)), "no")
    assert typed("wait", cancelled)[0] == 103
    code, out, err = typed("wait", done, waits, cancelled, "--timeout", "1s")
    assert code == 101
    assert [line.split()[1] for line in out.splitlines()] == ["done", "cancelled"]
    assert "1 job of 3 unfinished after 1s" in err
    assert "no coordinator is alive" in err
    code, out, _ = typed("wait", done, cancelled, "--json")
    assert (code, [each["status"] for each in json.loads(out)["jobs"]]) == (103, ["SUCCEEDED", "CANCELLED"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["nothing"], 102), (["--submission", "nothing"], 102), (["a", "--submission", "b"], 2), (["--timeout", "x"], 2)],
)
@pytest.mark.parametrize("command", ["wait", "fetch"])
def test_wait_and_fetch_report_errors_on_one_line(
    command: str, arguments: list[str], code: int, yard: Farmyard, typed: Typed
) -> None:
    yard.submit("job")
    if command == "fetch" and "--timeout" in arguments:
        return
    found, out, err = typed(command, *arguments)
    assert (found, out, err.count("\n")) == (code, "", 1)


def test_several_bundles_go_into_folders_named_after_their_networks(tmp_path: Path) -> None:
    one, other, third = ("a/b", "0" * 64), ("net", "1" * 64), ("net", "2" * 64)
    assert bundle_targets([one], tmp_path) == [tmp_path]
    assert [folder.name for folder in bundle_targets([one, other, third], tmp_path)] == [
        "a_b",
        "net-11111111",
        "net-22222222",
    ]


def test_several_bundles_do_not_go_into_one(tmp_path: Path) -> None:
    networks = [("a", "0" * 64), ("b", "1" * 64)]
    with pytest.raises(UsageError, match="one bundle, and there are 2"):
        bundle_targets(networks, tmp_path / "both.farm")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="one bundle, and there are 2"):
        bundle_targets(networks, tmp_path)


def test_fetch_skips_failed_jobs_of_several(
    yard: Farmyard, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.api.open_store", lambda _: yard.store)
    good, bad = yard.submit("good", "bad")
    yard.run([good])
    yard.ledger.cancel(JobSet(ids=(bad,)), "no")
    code, out, err = typed("fetch", "--submission", "s-good", "-o", str(tmp_path / "out"))
    assert code == 103
    assert f"bad: job {bad} was cancelled" in err
    assert out == f"{tmp_path / 'out' / 'good' / 'manifest.json'}: 4 cubins\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good"]
