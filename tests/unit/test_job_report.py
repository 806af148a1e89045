"""The report of a job: zeros, cache savings and kernel times; and its HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.main import run
from cli.report.figures import zeros_picture
from cli.report.job_page import report_page
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import AddResidual, Conv2d, ConvTranspose2d, Linear, SkippedLayer
from codegen.kernels import tiled
from codegen.selection.cost_model import network_microseconds
from codegen.target.device_model import typical_device
from farm.jobs.model import Outcome
from farm.reports.job_report import KernelTime
from farm.reports.zero_map import MAX_COLUMNS, MAX_ROWS, zero_map
from farm.tuning.book import TuningBook, key_of
from farm.tuning.record import TuningRecord
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Result, failed
from tests.samples import SMALL, SMALLER, layer
from tests.unit.farmyard import Farmyard
from tests.unit.reported import HOSTILE, report, reported, submitted


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Farmyard]:
    yard = Farmyard(tmp_path)
    yield yard
    yard.ledger.close()


class Words(HTMLParser):
    """The text of a page and the names of its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_map_of_a_small_layer_has_each_weight() -> None:
    kernel = np.zeros((4, 3, 1, 2), np.float32)
    kernel[0, 0, 0, 1] = kernel[2, 2, 0, 0] = -1.5
    found = zero_map(kernel)
    assert found.is_exact
    assert found.densities.tolist() == (kernel.reshape(4, 6) != 0).tolist()
    assert (found.empty_kernels, found.empty_inputs) == (2, 1)


def test_a_map_of_a_large_layer_is_bounded_and_loses_no_non_zero() -> None:
    kernel = (np.random.default_rng(0).random((1000, 37, 3, 3)) < 0.1).astype(np.float32)
    found = zero_map(kernel)
    assert found.densities.shape == (MAX_ROWS, MAX_COLUMNS)
    rows = np.diff(np.linspace(0, 1000, MAX_ROWS + 1).astype(int))
    columns = np.diff(np.linspace(0, 37 * 9, MAX_COLUMNS + 1).astype(int))
    assert round(float((found.densities * np.outer(rows, columns)).sum())) == np.count_nonzero(kernel)
    half = kernel.copy()
    half[500:] = 0
    densities = zero_map(half).densities
    assert densities[: MAX_ROWS // 2].any(axis=1).all()
    assert not densities[MAX_ROWS // 2 :].any()


def test_the_picture_of_the_largest_layer_is_small() -> None:
    kernel = (np.random.default_rng(0).random((4096, 25088)) < 0.1).astype(np.float32)
    picture = zeros_picture(zero_map(kernel), words="many")
    assert len(picture.source) < 8_000
    data = base64.b64decode(picture.source.partition("base64,")[2])
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (MAX_COLUMNS, MAX_ROWS)


def test_zeros_are_transparent_in_the_picture() -> None:
    kernel = np.eye(5, dtype=np.float32)
    data = base64.b64decode(zeros_picture(zero_map(kernel), words="").source.partition("base64,")[2])
    with Image.open(io.BytesIO(data)) as image:
        opacity = np.asarray(image.convert("RGBA"))[:, :, 3]
    assert (opacity == 255 * kernel).all()


def test_cache_savings_are_those_of_this_job_alone(yard: Farmyard) -> None:
    first = reported(yard, layer("conv1"), layer("conv2", SMALLER))
    second = reported(yard, layer("conv1"), layer("conv3", SMALLER, seed=1), name="other")
    assert first.statistics.cubin.hits == 0
    assert first.statistics.template.spent_seconds == pytest.approx(2 * 1.5)
    assert (second.statistics.cubin.hits, second.statistics.cubin.misses) == (2, 2)
    assert second.statistics.cubin.saved_seconds == pytest.approx(2 * 0.2)
    assert second.statistics.cubin.spent_seconds == pytest.approx(2 * 0.2)
    assert second.statistics.template.misses == 0
    assert second.statistics.template.saved_seconds == pytest.approx(2 * 1.5)
    again = report(yard, first.detail.job.id).statistics
    assert again == first.statistics
    assert {result.outcome for result in first.detail.results} == {Outcome.BUILT}


def record(of: Layer, batch: int, gpu: str = "NVIDIA H200") -> TuningRecord:
    from codegen.selection.choose import choose_tiling

    nonzeros = of.weights.nonzeros_per_output
    tiling = replace(choose_tiling(of.spec, batch, nonzeros), stages=4)
    key = key_of("sm_90", of.spec, batch, nonzeros, "float32", 3)
    return TuningRecord(key, gpu, tiling, 3.25, 4.0, 12, (), datetime(2026, 1, 1, tzinfo=UTC), 4.5, 5.0)


def test_times_are_measured_where_a_record_gave_the_tiling_and_predicted_elsewhere(yard: Farmyard) -> None:
    tuned = layer("conv1")
    found = record(tuned, 64)
    yard.ledger.tuning.put(found)
    both = reported(yard, tuned, layer("conv2", SMALLER), book=TuningBook.of([found]))
    assert both.layers[0].time_for("sm_90") == KernelTime(4.5, "NVIDIA H200", measured=True)
    build = both.layers[0].for_arch("sm_80").build
    density = build.nonzeros / build.spec.weights_count
    time = network_microseconds(tiled(build.spec, build.tiling), 64, density, typical_device("sm_80"))
    assert both.layers[0].time_for("sm_80") == KernelTime(time, "A100", measured=False)
    assert both.arch_groups() == [("sm_80",), ("sm_90",)]
    page = Words(report_page(both)).text
    assert "1 of 2 measured on NVIDIA H200, others predicted for H200" in page
    assert "Predicted for A100" in page


def test_a_measured_time_counts_for_its_own_architecture_only(yard: Farmyard) -> None:
    tuned = layer("conv1")
    found, older = record(tuned, 64), replace(record(tuned, 64), gpu="NVIDIA A100-SXM4-80GB", cold_microseconds=3.5)
    older = replace(older, key=replace(older.key, arch="sm_80"))
    yard.ledger.tuning.put(found)
    yard.ledger.tuning.put(older)
    both = reported(yard, tuned, book=TuningBook.of([found, older]))
    assert len(both.layers[0].variants) == 1  # one tiling
    assert [both.layers[0].time_for(arch).microseconds for arch in ("sm_80", "sm_90")] == [3.5, 4.5]


def test_a_record_without_the_residual_counts_as_measured(yard: Farmyard) -> None:
    found = record(layer("conv1"), 64)
    yard.ledger.tuning.put(found)
    added = layer("conv1", replace(SMALL, epilogue=(AddResidual(),)))
    time = reported(yard, added, book=TuningBook.of([found])).layers[0].time_for("sm_90")
    assert (time.microseconds, time.measured) == (4.5, True)


def test_a_record_of_another_batch_size_is_no_measurement(yard: Farmyard) -> None:
    tuned = layer("conv1")
    found = record(tuned, 64)
    yard.ledger.tuning.put(found)
    other = reported(yard, tuned, batch=50, book=TuningBook.of([found]))
    assert other.layers[0].for_arch("sm_90").build.tiling == found.tiling
    assert not other.layers[0].time_for("sm_90").measured


def test_hostile_names_are_text_on_the_page(yard: Farmyard) -> None:
    skipped = SkippedLayer(HOSTILE, "Gemm", f"because of {HOSTILE}", 5, 5)
    hostile = replace(layer(HOSTILE), folded=(f"Relu {HOSTILE}",))

    def refuse(request: Request) -> Result | None:
        bad = isinstance(request, CubinRequest) and request.arch == "sm_90"
        return failed(request, Failure(Fault.INPUT, f"no: {HOSTILE}")) if bad else None

    page = report_page(reported(yard, hostile, name=HOSTILE, skipped=(skipped,), play=refuse))
    found = Words(page)
    assert not {"script", "iframe", "object", "link", "base", "form"} & set(found.elements)
    assert "onerror" not in {name for name, _ in found.attributes}
    assert found.text.count(HOSTILE) >= 5
    assert {value for name, value in found.attributes if name == "src" and not str(value).startswith("data:")} == set()


def test_a_page_links_to_itself_only(yard: Farmyard) -> None:
    found = Words(report_page(reported(yard, layer())))
    linked = [value for name, value in found.attributes if name in ("href", "src", "srcset", "action")]
    assert linked
    assert not [value for value in linked if not str(value).startswith(("#", "data:"))]
    ids = {value for name, value in found.attributes if name == "id"}
    assert {str(value)[1:] for value in linked if str(value).startswith("#")} <= ids


def test_a_page_has_each_layers_shape_and_weights(yard: Farmyard) -> None:
    layers = (
        layer("conv1"),
        layer("depthwise", Conv2d(4, 8, 8, 4, 3, 3, groups=4)),
        layer("pointwise", Conv2d(8, 8, 8, 16, 1, 1)),
        layer("up", ConvTranspose2d(4, 6, 6, 8, 2, 2, stride=(2, 2))),
        layer("fc", Linear(64, 10)),
    )
    text = Words(report_page(reported(yard, *layers))).text
    for each in layers:
        assert each.name in text
        assert str(each.spec) in text
        assert f"{each.weights.nonzeros:,} of {each.spec.weights_count:,} weights left" in text
    for kind in ("Convolution", "Grouped convolution", "1x1 convolution", "Transposed convolution", "Fully connected"):
        assert kind in text
    assert "10 in the code, 90 deleted" in text


def test_an_unfinished_job_can_be_reported(yard: Farmyard) -> None:
    page = Words(report_page(report(yard, submitted(yard, layer("conv1"), layer("conv2", SMALLER)))))
    assert "PENDING" in page.text
    assert "0 of 1" in page.text


def test_a_job_whose_weights_are_lost_is_reported_without_their_picture(yard: Farmyard) -> None:
    lost, kept = layer("conv1"), layer("conv2", SMALLER)
    job_id = submitted(yard, lost, kept)
    yard.run([job_id])
    yard.store.remove_blobs([lost.weights.digest], 0)
    found = report(yard, job_id)
    assert [each.zeros is None for each in found.layers] == [True, False]
    assert "The store no longer has its weights." in Words(report_page(found)).text


def test_channels_without_weights_are_counted(yard: Farmyard) -> None:
    convolution, linear = layer("conv1"), layer("fc", Linear(64, 10))
    for each, spare in ((convolution, np.s_[1:, 1]), (linear, np.s_[:, 3:5])):
        each.weights.kernel[...] = 1.0
        each.weights.kernel[0] = 0.0
        each.weights.kernel[spare] = 0.0
    text = Words(report_page(reported(yard, convolution, linear))).text
    assert "1 output channel without a weight; 1 input channel never read" in text
    assert "1 output without a weight; 2 inputs never read" in text


def test_a_layer_in_several_parts_has_the_code_of_all(yard: Farmyard) -> None:
    [job_id] = yard.submit("net", parts=3)
    yard.run([job_id])
    assert "built, 3 cubins" in Words(report_page(report(yard, job_id))).text


def test_the_command_writes_the_page(
    yard: Farmyard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_STORE", yard.settings.store_url)
    monkeypatch.setenv("FARM_DATABASE_URL", yard.settings.database_url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    [job_id] = yard.submit("net")
    yard.run([job_id])
    path = tmp_path / "page.html"
    assert run(["report", job_id[:8], "-o", str(path)]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    assert path.read_text().startswith("<!doctype html>")
    assert run(["report", job_id, "-o", str(tmp_path / "nowhere" / "page.html")]) == 2
    assert "Name another file" in capsys.readouterr().err
    assert run(["report", "nosuchjob", "-o", str(path)]) == 102
