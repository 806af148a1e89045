"""Tables fit their terminal and cut nothing important; durations and sizes are readable."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from cli.output.failures import failure_lines
from cli.output.format import built_how, duration, moment, size
from cli.output.jobs import counts_line, job_json
from cli.output.layers import (
    code_table,
    compiled_line,
    folded_lines,
    layer_json,
    layer_table,
    totals_json,
    tuning_lines,
)
from cli.output.tuning import outcome_table, record_table
from codegen.ir.layer_spec import Conv2d, Linear
from codegen.ir.tiling import Part, Tiling
from farm.config.units import counted
from farm.jobs.model import Build, BuildOptions, BuildResult, Job, JobDetail, Outcome, Status, TilingChoice
from farm.tuning.search.tune import Outcome as TuneOutcome
from tests.tuning_samples import record

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
REASON = "no coordinator: run farm compile again"


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "id": "d6f2330b3ea4",
        "submission": "0123456789ab",
        "submitter": "somebody",
        "name": "lenet5",
        "model": "models/lenet5.onnx",
        "model_digest": "0" * 64,
        "options": BuildOptions(("sm_80",)),
        "status": Status.SUCCEEDED,
        "reason": "",
        "stage": "",
        "done": 4,
        "total": 4,
        "hits": 1,
        "tries": 1,
        "submitted_at": NOW,
        "started_at": NOW,
        "finished_at": NOW + timedelta(seconds=70),
    }
    return Job(**(values | changes))


def shown(renderable: Any, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def column(lines: list[str], name: str) -> str:
    """The text below a heading, with the breaks between lines taken out."""
    start = lines[0].index(name)
    following = [lines[0].index(other) for other in lines[0].split() if lines[0].index(other) > start]
    end = min(following, default=None)
    return " ".join(line[start:end].strip() for line in lines[1:]).strip()


def detail(*outcomes: Outcome, template_seconds: float = 0.0) -> JobDetail:
    spec = Conv2d(512, 14, 14, 512, 3, 3, stride=(2, 2))
    tiling = Tiling("conv2d", tile_width=8, tile_height=8, rows=1, group_outputs=32, chunk_channels=8, stages=2)
    name = "/layer4/layer4.1/conv2/Conv"
    build = Build(1, "d6f2330b3ea4", 0, name, "in", "out", spec, tiling, "w", 235_929, "m", (Part(0, 16),))
    results = tuple(
        BuildResult(
            1, arch, 0, outcome, "template", f"cubin {arch}", "0" * 64, 1_234_567, template_seconds=template_seconds
        )
        for arch, outcome in zip(("sm_80", "sm_120"), outcomes, strict=False)
    )
    return JobDetail(job(options=BuildOptions(("sm_80", "sm_120"))), (build,), results)


def in_parts(*outcomes: Outcome, parts: int = 3) -> JobDetail:
    """A layer in parts, for one architecture; of the last ones there may be nothing yet."""
    whole = detail(Outcome.BUILT)
    cut = replace(whole.builds[0], parts=tuple(Part(i, i + 1) for i in range(parts)), folded=("Relu relu1", "Add a"))
    results = tuple(
        replace(
            whole.results[0],
            part=i,
            outcome=outcome,
            cubin=None if outcome is Outcome.FAILED else "0" * 64,
            fmas_kept=1000 + i,
            fmas_deleted=9000,
            registers=(40, 128, 64)[i],
            spill_bytes=8 * i,
            cubin_bytes=1_000_000,
            rewrite_seconds=0.25,
            ptxas_seconds=2.0,
            template_seconds=1.5,
            error="ptxas ran out of memory" if outcome is Outcome.FAILED else "",
        )
        for i, outcome in enumerate(outcomes)
    )
    return JobDetail(whole.job, (cut,), results)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_layer_keeps_its_name_and_is_one_line(width: int) -> None:
    lines = shown(layer_table(detail(Outcome.BUILT, Outcome.HIT), width), width)
    assert len(lines) == 3
    assert max(map(len, lines)) <= width
    assert lines[1].split()[0] == "/layer4/layer4.1/conv2/Conv"
    assert "90.0%" in lines[1]
    assert "1.2 MB" in lines[1]
    assert ("512x14x14 -> 512, 3x3, /2" in lines[1]) == (width == 160)


def test_the_layer_table_ends_with_totals_per_architecture() -> None:
    two = in_parts(Outcome.BUILT, Outcome.HIT, Outcome.HIT)
    lines = shown(layer_table(two, 160, totals=True), 160)
    assert lines[-2].startswith("1 layer ")
    assert lines[-2].split("90.0%")[1].split() == ["3", "sm_80", "3", "of", "3", "6.0s", "128", "24", "B", "3.0", "MB"]
    assert lines[-1].split() == ["3", "sm_120", "0", "of", "3", "-", "-", "-", "-"]
    [sm_80, sm_120] = totals_json(two)["archs"]
    assert (sm_80["cubins"], sm_80["hits"], sm_80["cubin_bytes"], sm_80["registers"]) == (3, 2, 3_000_000, 128)
    assert sm_120["cubins"] == 0


def test_a_layer_in_parts_is_one_line_of_sums_and_maximum_registers() -> None:
    lines = shown(layer_table(in_parts(Outcome.BUILT, Outcome.HIT, Outcome.HIT), 160), 160)
    assert len(lines) == 2
    assert lines[1].split("90.0%")[1].split() == ["3", "sm_80", "built", "6.0s", "128", "24", "B", "3.0", "MB"]
    code = shown(code_table(in_parts(Outcome.BUILT, Outcome.HIT, Outcome.HIT), 160), 160)
    assert len(code) == 2
    assert {"3,003", "27,000", "750"} <= set(code[1].split())
    assert "made in 1.5s" in code[1]


def test_a_layer_in_parts_is_a_hit_only_if_all_parts_are() -> None:
    assert column(shown(layer_table(in_parts(*[Outcome.HIT] * 3), 160), 160), "CUBIN") == "hit"


def test_a_layer_with_a_failed_part_fails_and_the_part_is_named() -> None:
    failed = in_parts(Outcome.BUILT, Outcome.FAILED, Outcome.HIT)
    lines = shown(layer_table(failed, 160), 160)
    assert (column(lines, "CUBIN"), column(lines, "SIZE")) == ("failed", "-")
    assert [line.plain for line in failure_lines([failed])] == [
        "failed: ptxas ran out of memory",
        "  /layer4/layer4.1/conv2/Conv sm_80 part 2 of 3",
    ]


def test_failures_of_one_cause_are_one_block_with_one_command() -> None:
    def failing(name: str, line: int) -> JobDetail:
        cut = in_parts(Outcome.FAILED, Outcome.FAILED, Outcome.FAILED)
        results = tuple(
            replace(each, error=f"ptxas failed: kernel.ptx, line {line + i}; error : bad", command=f"ptxas {line + i}")
            for i, each in enumerate(cut.results)
        )
        return replace(cut, job=job(name=name), results=results)

    other = in_parts(Outcome.FAILED)
    assert [line.plain for line in failure_lines([failing("a", 7), failing("b", 9999), other])] == [
        "failed: ptxas failed: kernel.ptx, line 7; error : bad",
        "  6 cubins of 2 layers in 2 jobs, sm_80: a /layer4/layer4.1/conv2/Conv sm_80 part 1 of 3, "
        "a /layer4/layer4.1/conv2/Conv sm_80 part 2 of 3, a /layer4/layer4.1/conv2/Conv sm_80 part 3 of 3, 3 more",
        "  rerun: ptxas 7",
        "failed: ptxas ran out of memory",
        "  lenet5 /layer4/layer4.1/conv2/Conv sm_80 part 1 of 3",
    ]


def test_an_unfinished_layer_in_parts_counts_its_cubins() -> None:
    assert column(shown(layer_table(in_parts(Outcome.BUILT, Outcome.HIT), 160), 160), "CUBIN") == "2 of 3"


def test_without_parts_there_is_no_parts_column() -> None:
    assert "PARTS" not in shown(layer_table(detail(Outcome.BUILT), 100), 100)[0]


def test_folded_nodes_are_shown() -> None:
    [line] = folded_lines(in_parts(Outcome.HIT))
    assert line.plain == "/layer4/layer4.1/conv2/Conv also computes: Relu relu1, Add a"
    assert folded_lines(detail(Outcome.BUILT)) == []


def test_a_linear_layer_is_shown_by_its_inputs_and_outputs() -> None:
    of_conv = detail(Outcome.BUILT)
    linear = replace(of_conv, builds=(replace(of_conv.builds[0], spec=Linear(4096, 1000), nonzeros=409_600),))
    lines = shown(layer_table(linear, 160), 160)
    assert column(lines, "SHAPE") == "4096 -> 1000"
    assert column(lines, "SPARSITY") == "90.0%"


def test_a_layers_json_has_a_cubin_for_each_part_and_what_was_folded() -> None:
    cut = in_parts(Outcome.BUILT, Outcome.HIT, Outcome.HIT)
    document = layer_json(cut.builds[0], cut.results_of(cut.builds[0]), cut.job.options)
    assert document["folded"] == ["Relu relu1", "Add a"]
    assert document["parts"] == [{"first": i, "end": i + 1} for i in range(3)]
    assert [cubin["part"] for cubin in document["cubins"]] == document["parts"]


def test_a_layer_with_several_tilings_is_named_once_with_their_architectures() -> None:
    plain = detail(Outcome.BUILT)
    [first] = plain.builds
    first = replace(first, choices=(TilingChoice("sm_80", note="the record of NVIDIA H200 was not used: too large"),))
    second = replace(first, id=99, choices=(TilingChoice("sm_90", "NVIDIA H200"),))
    results = (*plain.results, replace(plain.results[0], build=99, arch="sm_90"))
    job_of_two = job(options=BuildOptions(("sm_80", "sm_90")))
    both = JobDetail(job_of_two, (first, second), results)
    lines = shown(layer_table(both, 160), 160)
    assert [line.startswith(first.layer) for line in lines[1:]] == [True, False]
    assert [line.rstrip().rpartition("  ")[2] for line in shown(code_table(both, 160), 160)] == [
        "TILING FROM",
        "cost model",
        "NVIDIA H200",
    ]
    code = shown(code_table(both, 80), 80)
    assert [line.split()[1] for line in code] == ["ARCHS", "80", "90"]
    assert "ARCHS" not in shown(code_table(plain, 160), 160)[0]
    [note] = tuning_lines(both.builds)
    assert "sm_80: the record of NVIDIA H200 was not used" in note.plain
    document = layer_json(second, both.results_of(second), job_of_two.options)
    assert document["archs"] == ["sm_90"]
    assert document["tiling_choices"] == [
        {"arch": "sm_90", "batches": [64], "record_of_gpu": "NVIDIA H200", "note": None}
    ]


def test_tuning_tables_fit_100_columns() -> None:
    tiling = Tiling("conv2d", 128, 16, 16, 128, 256, 4, images=16)
    found = TuneOutcome("/layer4/layer4.1/conv2/Conv", ("a", "b"), 4096, record(tiling, microseconds=12345.6))
    lines = shown(outcome_table([found, replace(found, record=None, reason="no tiling fits it")], 100), 100)
    assert all(len(line) <= 100 for line in lines)
    assert "128x16x16 r16 k128 c256 s4" in lines[1]
    listed = shown(record_table([record(tiling)], frozenset(), 100), 100)
    assert all(len(line) <= 100 for line in listed)
    assert "128x16x16 r16 k128 c256 s4" in "".join(listed)


def test_cubins_made_without_ptxas_name_their_assembler_and_cost_no_ptxas_time() -> None:
    by_ptxas, direct = detail(Outcome.BUILT, Outcome.BUILT).results
    by_ptxas = replace(by_ptxas, ptxas_seconds=2.0)
    direct = replace(direct, ptxas_seconds=0.5, assembler="direct")
    mixed = replace(detail(), results=(by_ptxas, direct))
    lines = shown(layer_table(mixed, 160, totals=True), 160)
    assert [line.split("built" if "built" in line else "1 of 1")[1].split()[0] for line in lines[1:]] == [
        "2.0s",
        "direct",
        "2.0s",
        "0.0s",
    ]
    assert built_how(replace(by_ptxas, ptx="ab" * 32)).startswith("rewrite 0 ms, ptxas 2.0s, ")
    assert built_how(direct).startswith("assembled directly in 500 ms, ")


def test_a_layer_without_cubins_is_to_come() -> None:
    assert "to come" in shown(layer_table(detail(), 100), 100)[1]


def test_a_fully_cached_compile_says_that_nothing_was_compiled() -> None:
    line = compiled_line([detail(Outcome.HIT, Outcome.HIT)], 0.23).plain
    assert line == "nothing to compile: 2 of 2 cubins from the cache (100% hits), 0.2s"


def test_a_compile_ends_with_its_builds_and_the_hit_rate() -> None:
    line = compiled_line([detail(Outcome.HIT, Outcome.BUILT, template_seconds=2.0)], 12.7).plain
    assert line == "compiled 1 cubin and 1 template, 1 of 2 cubins from the cache (50% hits), 12s"
    assert "1 failed" in compiled_line([detail(Outcome.HIT, Outcome.FAILED)], 1.0).plain


def test_counts_name_every_state() -> None:
    text = counts_line({Status.RUNNING: 2}).plain
    assert text == "0 PENDING  2 RUNNING  0 SUCCEEDED  0 FAILED  0 CRASHED  0 CANCELLED"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.04, "0.0s"), (9.94, "9.9s"), (59.9, "59s"), (185, "3m05s"), (7800, "2h10m"), (97 * 3600, "4d01h")],
)
def test_a_duration_is_read_at_a_glance(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(812, "812 B"), (14_200, "14 KB"), (3_200_000, "3.2 MB")])
def test_a_size_is_read_at_a_glance(count: int, text: str) -> None:
    assert size(count) == text


def test_one_is_singular() -> None:
    assert (counted(1, "cubin"), counted(1200, "cubin")) == ("1 cubin", "1,200 cubins")


def test_an_old_moment_is_a_date_and_a_recent_one_a_time() -> None:
    assert moment(NOW - timedelta(days=40), NOW).count("-") == 2
    assert moment(NOW, NOW).count(":") == 2


def test_a_jobs_json_has_its_times_with_their_zone() -> None:
    document = job_json(job())
    assert document["seconds"] == 70
    assert document["submitted_at"] == "2026-11-21T12:00:00+00:00"
    assert document["status"] == "SUCCEEDED"
