"""Checkpoints of a sweep against their sparsity: the CSV file and plots, and a user's measurements beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import run
from cli.report.measured import LARGEST_FILE_BYTES, NOTHING, read_measured
from cli.report.sweep import sweep_page
from cli.report.sweep_table import HEIGHT, WIDTH, check_measured, sweep_csv, sweep_plots
from farm.errors import UsageError
from farm.reports.sweep_report import SweepReport
from tests.samples import SMALLER, layer
from tests.unit.farmyard import ARCHS, Farmyard
from tests.unit.reported import HOSTILE, report, sweep, swept

LEVELS = (0.8, 0.9, 0.95)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Farmyard]:
    yard = Farmyard(tmp_path)
    yield yard
    yard.ledger.close()


def compiled(yard: Farmyard, *, unfinished: int = 0) -> SweepReport:
    models = {f"net-{i}": (layer("a", sparsity=level), layer("b", SMALLER, seed=i)) for i, level in enumerate(LEVELS)}
    jobs = swept(yard, models)
    yard.run(jobs[: len(jobs) - unfinished])
    return sweep(yard)


def rows(report: SweepReport, measured: Path | None = None) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(sweep_csv(report.points, read_measured(measured) if measured else NOTHING))))


def test_a_row_has_the_figures_of_a_checkpoint_on_an_architecture(yard: Farmyard) -> None:
    found = rows(compiled(yard))
    assert [(row["name"], row["arch"]) for row in found] == [(f"net-{i}", arch) for i in range(3) for arch in ARCHS]
    for row in found:
        job = report(yard, row["job"])
        results = [each for each in job.detail.results if each.arch == row["arch"]]
        assert int(row["cubin_bytes"]) == sum(each.cubin_bytes for each in results) > 0
        assert int(row["nonzeros"]) == job.coverage.nonzeros
        assert int(row["weights"]) == job.coverage.weights
        assert float(row["sparsity"]) == pytest.approx(1 - job.coverage.nonzeros / job.coverage.weights)
        assert float(row["predicted_microseconds"]) == pytest.approx(job.total_microseconds(row["arch"]))
        seconds = sum(each.rewrite_seconds + each.ptxas_seconds for each in results)
        assert float(row["compile_seconds"]) == pytest.approx(seconds)


def test_a_job_that_has_not_succeeded_has_no_row(yard: Farmyard) -> None:
    assert {row["name"] for row in rows(compiled(yard, unfinished=1))} == {"net-0", "net-1"}


def test_a_cell_without_a_measurement_is_empty(yard: Farmyard, tmp_path: Path) -> None:
    made = compiled(yard)
    (tmp_path / "m.csv").write_text(
        f"name,accuracy,arch,latency\nnet-0,0.91,,\n\nnet-0,,{ARCHS[0]},12.5\n{made.jobs[1].id},0.9,,\n"
    )
    found = {(row["name"], row["arch"]): (row["accuracy"], row["latency"]) for row in rows(made, tmp_path / "m.csv")}
    assert found["net-0", ARCHS[0]] == ("0.91", "12.5")
    assert found["net-0", ARCHS[1]] == ("0.91", "")
    assert found["net-1", ARCHS[1]] == ("0.9", "")
    assert found["net-2", ARCHS[1]] == ("", "")


def test_a_gpu_s_name_says_its_architecture(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("\ufeffname, arch ,latency\nnet, H100 , 3\n", encoding="utf-8")
    measured = read_measured(tmp_path / "m.csv")
    assert measured.values == {("net", "sm_90"): {"latency": 3.0}}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "its first line needs distinct names of columns"),
        (b"name\nnet\n", "its first line needs distinct names of columns"),
        (b"accuracy\n0.9\n", "its first line needs distinct names of columns"),
        (b"name,a,a\nnet,1,2\n", "its first line needs distinct names of columns"),
        (b"name,a\nnet\n", "line 2 has 1 values for 2 columns"),
        (b"name,a\nnet,1,2\n", "line 2 has 3 values for 2 columns"),
        (b"name,a\nnet,good\n", "line 2: 'good' is not a number"),
        (b"name,a\nnet,nan\n", "line 2: 'nan' is not a number"),
        (b"name,a\nnet,1e999\n", "line 2: '1e999' is not a number"),
        (b"name,arch,a\nnet,toaster,1\n", "'toaster' is no architecture or GPU"),
        (b'name,a\n"net,1\n', "unexpected end of data"),
        (b"name,a\n\xff,1\n", "'utf-8' codec can't decode"),
        (b"x" * (LARGEST_FILE_BYTES + 1), "it has more than 16,000,000 bytes"),
    ],
)
def test_a_file_that_is_no_table_of_numbers_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"--measured {path}: {reason}") as found:
        read_measured(path)
    assert "\n" not in str(found.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is not a file"):
        read_measured(tmp_path)


def test_measurements_of_something_else_are_refused(yard: Farmyard, tmp_path: Path) -> None:
    points = compiled(yard).points
    (tmp_path / "m.csv").write_text("name,accuracy\nnet-7,0.9\n")
    with pytest.raises(UsageError, match="no checkpoint 'net-7' that succeeded: those of the submission are net-0"):
        check_measured(points, read_measured(tmp_path / "m.csv"))
    (tmp_path / "m.csv").write_text("name,sparsity\nnet-0,0.9\n")
    with pytest.raises(UsageError, match="the report has a column sparsity of its own: rename yours"):
        check_measured(points, read_measured(tmp_path / "m.csv"))


def test_a_plot_has_a_dot_for_each_row_and_the_lowest_and_highest_values_at_its_edges(
    yard: Farmyard, tmp_path: Path
) -> None:
    (tmp_path / "m.csv").write_text("name,accuracy\nnet-0,0.92\nnet-2,0.7\n")
    archs, plots = sweep_plots(compiled(yard).points, read_measured(tmp_path / "m.csv"))
    assert archs == list(ARCHS)
    *own, accuracy = plots
    assert len(own) == 3
    assert all(len(plot.dots) == 3 * len(ARCHS) for plot in own)
    assert all(0 < dot.x < WIDTH for plot in plots for dot in plot.dots)
    assert all(0 < dot.y < HEIGHT for plot in plots for dot in plot.dots)
    first, last = accuracy.dots[0], accuracy.dots[-1]
    assert first.x < last.x  # more zeros
    assert first.y < last.y  # y grows downwards
    assert (accuracy.least, accuracy.most) == ("0.7", "0.92")
    assert accuracy.dots[0].words == f"net-0, {ARCHS[0]}, {accuracy.first} zeros: 0.92"


def test_one_checkpoint_is_in_the_middle(yard: Farmyard) -> None:
    yard.run(swept(yard, {"net": (layer(),)}))
    _, plots = sweep_plots(sweep(yard).points[:1], NOTHING)
    assert [(dot.x, dot.y) for plot in plots for dot in plot.dots] == [(WIDTH / 2, HEIGHT / 2)] * 3


def test_the_page_shows_hostile_names_as_text(yard: Farmyard, tmp_path: Path) -> None:
    yard.run(swept(yard, {HOSTILE: (layer(),)}))
    made = sweep(yard)
    (tmp_path / "m.csv").write_text(f"name,<script>\n{made.jobs[0].id},1\n")
    page = sweep_page(made, read_measured(tmp_path / "m.csv"))
    assert page.count("<circle") == 4 * len(ARCHS)
    assert "<script" not in page


def test_a_sweep_without_results_has_no_plots(yard: Farmyard) -> None:
    swept(yard, {"net": (layer(),)})
    assert "Against sparsity" not in sweep_page(sweep(yard))


def test_the_command_writes_the_page_and_the_table(
    yard: Farmyard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_STORE", yard.settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", yard.settings.database_url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    made = compiled(yard)
    page, table, own = (tmp_path / name for name in ("sweep.html", "sweep.csv", "own.csv"))
    own.write_text("name,accuracy\nnet-1,0.875\n")
    line = ["report", "--sweep", "sweep", "-o", str(page), "--csv", str(table), "--measured", str(own)]
    assert run(line) == 0
    assert "Against sparsity" in page.read_text()
    assert table.read_text() == sweep_csv(made.points, read_measured(own))
    assert "0.875" in table.read_text()
    assert str(table) in capsys.readouterr().out
    assert run(["report", "--csv", str(table), "-o", str(page)]) == 2
    assert "are for the checkpoints of a sweep: add --sweep ID" in capsys.readouterr().err
