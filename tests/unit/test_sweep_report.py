"""The report of a submission: a timeline of its jobs, and their cache hits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from cli.main import run
from cli.report.sweep import sweep_page
from farm.jobs.model import Outcome
from farm.ledger import TimedRun
from farm.reports.sweep_report import SweepReport
from tests.benchmarks.timeline import NVCC, PTXAS, draw
from tests.bundle_samples import JOB
from tests.samples import SMALLER, layer
from tests.unit.farmyard import Farmyard
from tests.unit.reported import HOSTILE, sweep, swept

BEGIN = JOB.submitted_at


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Farmyard]:
    yard = Farmyard(tmp_path)
    yield yard
    yard.ledger.close()


def after(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def made(end: float, seconds: float, *, template: bool = False, outcome: Outcome = Outcome.BUILT) -> TimedRun:
    return TimedRun(JOB.id, template, outcome, BEGIN + after(end), seconds)


def of(*runs: TimedRun, seconds: float = 10) -> SweepReport:
    job = replace(JOB, started_at=BEGIN, finished_at=BEGIN + after(seconds))
    return SweepReport("s", (job,), runs, BEGIN + after(1000))


def test_tools_at_work_are_counted_over_the_time_that_they_ran() -> None:
    report = of(made(4, 3, template=True), made(7, 2), made(7.5, 1.0), made(10, 5))
    [nvcc, ptxas] = report.at_work(report.of_job(report.jobs[0]), 10)
    np.testing.assert_allclose(nvcc, [0, 1, 1, 1, 0, 0, 0, 0, 0, 0], atol=1e-9)
    np.testing.assert_allclose(ptxas, [0, 0, 0, 0, 0, 2, 2.5, 1.5, 1, 1], atol=1e-9)
    assert float(report.at_work(report.runs, 7).sum()) * report.seconds / 7 == pytest.approx(11)


def test_cache_hits_are_no_work() -> None:
    report = of(made(4, 3, outcome=Outcome.HIT), made(5, 1, outcome=Outcome.FAILED))
    assert report.at_work(report.runs, 10).sum() == pytest.approx(1)


def test_a_tool_that_began_before_the_submission_is_cut_off() -> None:
    report = of(made(2, 6))
    assert report.at_work(report.runs, 5).tolist() == [[0] * 5, [1, 0, 0, 0, 0]]


def test_a_submission_has_the_runs_of_its_jobs_in_the_order_in_which_they_ended(yard: Farmyard) -> None:
    shared = layer("conv1")
    [other] = yard.submit("other")
    first, second = swept(
        yard, {"a": (shared, layer("conv2", SMALLER)), "b": (shared, layer("conv2", SMALLER, seed=1))}
    )
    yard.run([other])
    yard.run([first])
    yard.run([second])
    report = sweep(yard)
    assert [job.name for job in report.jobs] == ["a", "b"]
    assert {entry.job for entry in report.runs} == {first, second}
    assert [entry.ended_at for entry in report.runs] == sorted(entry.ended_at for entry in report.runs)
    outcomes = [entry.outcome for entry in report.of_job(report.jobs[1])]
    assert (outcomes.count(Outcome.HIT), outcomes.count(Outcome.BUILT)) == (2, 2)
    assert report.begin <= report.runs[0].ended_at <= report.end


def test_the_page_has_every_job_in_any_state(yard: Farmyard) -> None:
    first, _ = swept(yard, {"one": (layer(),), HOSTILE: (layer(seed=1),)}, HOSTILE)
    assert "not begun" in sweep_page(sweep(yard))
    yard.run([first])
    page = sweep_page(sweep(yard))
    assert "1 PENDING" in page
    assert "1 SUCCEEDED" in page
    assert "2 of 2 cubins, 0 cached" in page
    assert "0 of 2 cubins, 0 cached" in page
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page


def test_the_page_of_a_large_submission_is_small(yard: Farmyard) -> None:
    report = of(*(made(i / 100, 3.3 + i % 7) for i in range(1000)))
    jobs = tuple(replace(report.jobs[0], id=f"{i}") for i in range(50))
    runs = tuple(replace(entry, job=job.id) for job in jobs for entry in report.runs)
    assert len(sweep_page(replace(report, jobs=jobs, runs=runs))) < 50 * 4_000


def test_a_job_and_a_submission_cannot_be_combined(
    yard: Farmyard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_STORE", yard.settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", yard.settings.database_url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    [job] = swept(yard, {"one": (layer(),)})
    page = tmp_path / "sweep.html"
    assert run(["report", "--submission", "sweep", "-o", str(page)]) == 0
    assert "1 job" in page.read_text()
    assert run(["report", job, "--submission", "sweep", "-o", str(page)]) == 2
    assert "cannot be combined" in capsys.readouterr().err
    assert run(["report", "--submission", "nosuch", "-o", str(page)]) == 102


def test_the_picture_of_a_sweep_is_the_same_each_time(tmp_path: Path) -> None:
    report = of(made(4, 3, template=True), made(7, 2), made(9, 1, outcome=Outcome.HIT))
    pictures = [tmp_path / "one.svg", tmp_path / "other.svg"]
    for picture in pictures:
        draw(report, picture)
    one, other = (picture.read_text() for picture in pictures)
    assert one == other
    assert NVCC in one
    assert PTXAS in one
