"""Summaries of measurements: roofs, means, break-evens, files, tables, the paper's rows."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cli.output.bench import paper_table, tables
from codegen.ir.layer_spec import AddResidual, Conv2d, ConvTranspose2d, Linear
from codegen.model_zoo.ten_operators import TEN_OPERATORS
from farm.bench.layers.contenders import GENERATED
from farm.bench.layers.counters import DRAM, FETCH_STALLS, GLOBAL_LOADS, NoCountersError, by_contender, read_csv
from farm.bench.layers.paper import paper_numbers, rows
from farm.bench.layers.results import Measurement, Results, read_results, write_results
from farm.bench.layers.roof import Peaks, moved_bytes, nonzero_flops, peaks_of, roof_microseconds
from farm.bench.layers.summary import break_even, break_evens, geometric_mean, speedups, summarise
from farm.cuda.measure.workload import CaseKey
from farm.errors import UsageError
from tests.unit.bench_results import PEAKS, made_up


def test_the_roof_of_the_prototypes_table_comes_out() -> None:
    expected = {"resnet-conv1": 23.9, "resnet-conv2": 22.1, "vgg-conv1": 200.1, "vgg-conv2": 382.4, "vgg-conv3": 176.7}
    for name, microseconds in expected.items():
        spec = TEN_OPERATORS[name]
        assert roof_microseconds(spec, round(0.1 * spec.weights_count), 64, PEAKS) == pytest.approx(
            microseconds, rel=5e-3
        )


def test_work_and_bytes_count_what_the_layer_is() -> None:
    conv = Conv2d(4, 10, 12, 6, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1))
    assert nonzero_flops(conv, 50, 3) == 2 * 50 * 5 * 6 * 3
    assert nonzero_flops(ConvTranspose2d(4, 5, 6, 2, 2, 2, stride=(2, 2)), 7, 3) == 2 * 7 * 30 * 3
    assert nonzero_flops(Linear(8, 9), 11, 5) == 2 * 11 * 5
    assert moved_bytes(Linear(8, 9, epilogue=(AddResidual(),), data_type="float16"), 5) == (8 + 9 + 9) * 2 * 5


def test_a_float16_kernel_may_do_twice_the_work() -> None:
    spec = Conv2d(64, 8, 8, 64, 3, 3)
    compute = Peaks(1e12, 1e30)
    half = roof_microseconds(replace(spec, data_type="float16"), 1000, 1, compute)
    assert half == pytest.approx(roof_microseconds(spec, 1000, 1, compute) / 2)


def test_peaks_come_from_attributes_where_no_measured_ones_are_known() -> None:
    known = peaks_of("NVIDIA H200", 90, 132, 1.98e9, 3.2e9, 6144)
    assert known == Peaks(67e12, 4.3e12)
    a100 = peaks_of("NVIDIA A100", 80, 108, 1.41e9, 1.593e9, 5120)
    assert a100.flops == pytest.approx(19.5e12, rel=0.01)
    assert a100.bytes_per_second == pytest.approx(0.875 * 2.039e12, rel=0.01)


def test_a_geometric_mean_of_ratios_and_of_nothing() -> None:
    assert geometric_mean([2, 8]) == pytest.approx(4)
    with pytest.raises(ValueError, match="nothing"):
        geometric_mean([])


def test_a_break_even_is_interpolated_in_the_logarithm() -> None:
    assert break_even({0.4: 0.5, 0.6: 2.0}).sparsity == pytest.approx(0.5)
    assert str(break_even({0.1: 1.2, 0.5: 3.0})) == "at or under 0.1"
    assert str(break_even({0.1: 0.2, 0.95: 0.9})) == "above 0.95"
    # Not the first crossing: from there on the kernel is to be faster throughout.
    assert break_even({0.1: 1.5, 0.3: 0.5, 0.5: 2.0}).sparsity == pytest.approx(0.4)


def test_speedups_leave_out_cases_without_a_time_on_either_side() -> None:
    case, other = CaseKey("a", 1, 0.9, "float32"), CaseKey("b", 1, 0.9, "float32")
    found = Results(
        {},
        {},
        (
            Measurement(case, GENERATED, 2.0),
            Measurement(case, "cudnn-fp32", 5.0),
            Measurement(other, GENERATED, None, "did not build"),
            Measurement(other, "cudnn-fp32", 5.0),
        ),
    )
    assert speedups(found, "cudnn-fp32") == {case: 2.5}
    (summary,) = summarise(found)
    assert (summary.mean, summary.least_operator, summary.operators) == (2.5, "a", 1)


def test_a_summary_names_the_worst_operator_of_each_batch() -> None:
    for summary in summarise(made_up()):
        assert summary.least_operator == "lenet-conv1"
        assert summary.least < summary.mean


def test_results_survive_their_file(tmp_path: Path) -> None:
    results = made_up((0.5, 0.9))
    write_results(tmp_path / "r.json", results)
    assert read_results(tmp_path / "r.json") == results
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 9}'])
def test_a_file_of_something_else_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError, match=r"no file of farm bench"):
        read_results(tmp_path / "r.json")
    with pytest.raises(UsageError, match="cannot be written"):
        write_results(tmp_path / "none" / "r.json", made_up())


def test_the_tables_fit_100_columns_and_name_every_missing_time() -> None:
    results = made_up((0.5, 0.9))
    console = Console(width=100, record=True, file=io.StringIO())
    for part in tables(results, 100):
        console.print(part)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 100
    assert "no time of cuBLAS TF32, all 40 cases: out of GPU memory" in text
    # No name is folded and no number cut.
    assert "alexnet-conv1 64" in text
    assert "…" not in text
    assert len(break_evens(results, ["cudnn-fp32"])) == 20


CSV = """==PROF== Connected to process 12
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","conv2d","dram__bytes.sum.per_second","Gbyte/second","2,000.5"
"0","1","conv2d","gpu__time_duration.sum","us","10"
"0","1","conv2d","smsp__warp_issue_stalled_no_instruction_per_warp_active.pct","%","3"
"1","1","conv2d","dram__bytes.sum.per_second","Gbyte/second","1000.5"
"1","1","conv2d","gpu__time_duration.sum","us","30"
"2","1","implicit_gemm","dram__bytes.sum.per_second","n/a","n/a"
"3","1","im2col","dram__bytes.sum.per_second","Tbyte/second","1"
"4","1","csrmm","dram__bytes.sum.per_second","Tbyte/second","0.5"
"""


def test_counters_are_sorted_by_contender_and_averaged_over_time() -> None:
    found = by_contender(read_csv(CSV), ["lenet-conv1"])["lenet-conv1"]
    assert found[GENERATED] == {DRAM: pytest.approx(1250.5e9), FETCH_STALLS: 3}
    assert found["cusparse"] == {DRAM: pytest.approx(0.75e12)}
    assert found["cudnn-fp32"] == {}
    with pytest.raises(NoCountersError, match="1 operators instead of 2"):
        by_contender(read_csv(CSV), ["lenet-conv1", "lenet-conv2"])
    assert read_csv("==ERROR== no permission") == []


def test_every_figure_of_the_paper_has_rows_beside_ours() -> None:
    results = made_up((0.0, 0.5, 0.8, 0.9))
    measurements = []
    for each in results.measurements:
        if each.contender == GENERATED:
            kept = each.facts["nonzeros"]
            sizes = {
                "fmas_deleted": 100,
                "ptx_instructions": kept,
                "machine_instructions": 1.5 * kept,
                "ptx_bytes": 50 * kept,
                "cubin_bytes": 16 * kept,
            }
            measurements.append(replace(each, facts={**each.facts, **sizes}))
        else:
            measurements.append(each)
    structured = CaseKey("vgg-conv2, PC", 64, 0.0, "float32")
    measurements.append(Measurement(structured, "cudnn-fp32", 4000.0))
    counters = {"vgg-conv2": {GENERATED: {DRAM: 2e12, GLOBAL_LOADS: 3e12, FETCH_STALLS: 4.0}, "cusparse": {DRAM: 1e12}}}
    found = rows(replace(results, measurements=tuple(measurements)), counters)
    by_figure = {figure: [row for row in found if row.figure == figure] for figure in {row.figure for row in found}}
    assert by_figure.keys() >= {"Figure 7", "Figure 8", "Figure 9", "Figure 10", "Figure 11"}
    assert by_figure.keys() >= {"Table 3", "Table 4", "Table 5", "text"}
    first = next(row for row in by_figure["Figure 7"] if "cuDNN" in row.what)
    assert first.paper == "3.1-9.6x"
    assert first.ours == "5.0-8.2x, mean 6.5x"
    assert [row.ours for row in by_figure["Figure 10"]] == ["2.0-2.0x", "no such counter"]
    assert next(row for row in by_figure["text"] if "each PTX" in row.what).ours == "1.50-1.50"
    pc = next(row for row in by_figure["Figure 9"] if "PC" in row.what and "64" in row.what)
    assert pc.paper == "1.3x"
    assert pc.ours.startswith("mean 1.6x")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(paper_table(found, 100))
    assert max(map(len, console.export_text().splitlines())) <= 100


def test_without_counters_the_rows_say_why() -> None:
    found = rows(made_up(), "no counters: ncu is not on the path")
    assert {row.ours for row in found if row.figure in ("Figure 10", "Table 5")} == {
        "no counters: ncu is not on the path"
    }


def test_the_papers_sizes_shrink_with_the_weights() -> None:
    numbers = paper_numbers()
    assert json.dumps(numbers)
    assert numbers["sizes_kilobytes"].keys() == TEN_OPERATORS.keys()
    for sizes in numbers["sizes_kilobytes"].values():
        for kind in ("ptx", "cubin"):
            assert sizes[kind] == sorted(sizes[kind], reverse=True)
