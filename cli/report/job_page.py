"""A job as an HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.output.failures import failure_lines
from cli.output.format import duration, magnitude, microseconds, percent, size
from cli.output.layers import arch_totals, left_out_lines, lowered_lines, tuning_lines
from cli.report.figures import KINDS, Figure, Segment, Strip, kind_of
from cli.report.layers import layer_cards, layer_id
from cli.report.template import render
from farm.config.units import counted
from farm.jobs.model import Outcome

if TYPE_CHECKING:
    from farm.reports.job_report import JobReport, LayerReport

SLOWEST = 3
"""Layers named below a strip of times."""


@dataclass(frozen=True)
class Stage:
    """A tool's CPU seconds, spent in this job and saved by the cache."""

    tool: str
    purpose: str
    spent: float
    saved: float


def report_page(report: JobReport) -> str:
    """The whole HTML document."""
    present = {kind_of(layer.build.spec) for layer in report.layers}
    statistics, stages = report.statistics, _stages(report)
    return render(
        "job.html.j2",
        report=report,
        figures=_figures(report),
        times=_times(report),
        kinds={kind: label for kind, label in KINDS.items() if kind in present},
        codes=_codes(report),
        cached=[
            f"{stage.hits} of {counted(stage.hits + stage.misses, noun)}"
            for stage, noun in ((statistics.template, "template"), (statistics.cubin, "cubin"))
        ],
        stages=stages,
        longest_stage=max(stage.spent + stage.saved for stage in stages) or 1.0,
        cards=layer_cards(report),
        notes=_notes(report),
    )


def _figures(report: JobReport) -> list[Figure]:
    coverage, statistics, job = report.coverage, report.statistics, report.detail.job
    kept, deleted = statistics.fmas_kept, statistics.fmas_deleted
    cubins = statistics.cubin
    code_bytes = [total.cubin_bytes for total in arch_totals(report.detail)]
    ran = None
    if job.started_at is not None and job.finished_at is not None:
        ran = (job.finished_at - job.started_at).total_seconds()
    [first, *_] = report.arch_groups()
    time = report.total_microseconds(first[0])
    return [
        Figure(
            percent(1 - coverage.nonzeros / coverage.weights) if coverage.weights else "-",
            "sparsity",
            f"{magnitude(coverage.nonzeros)} of {magnitude(coverage.weights)} weights are left",
        ),
        Figure(
            percent(deleted / (kept + deleted)) if kept + deleted else "-",
            "of the multiply-adds deleted",
            f"{magnitude(kept)} of {magnitude(kept + deleted)} instructions are left in {counted(job.done, 'cubin')}",
        ),
        Figure(size(max(code_bytes, default=0)), "of code", "for the architecture that needs most"),
        Figure(
            microseconds(time),
            f"for a batch of {job.options.batches[-1]}",
            f"{_source(report, first[0])}, {', '.join(first)}",
        ),
        Figure(
            duration(ran),
            "to compile",
            f"{cubins.hits} of {counted(cubins.hits + cubins.misses, 'cubin')} from the cache",
        ),
    ]


def _times(report: JobReport) -> list[Strip]:
    """Kernel times by layer; architectures with equal times share a strip."""
    groups = report.arch_groups()
    totals = {group: report.total_microseconds(group[0]) for group in groups}
    longest = max(totals.values()) or 1.0
    strips = []
    for group in groups:
        segments = []
        for layer in report.layers:
            amount = layer.time_for(group[0]).microseconds
            words = f"{microseconds(amount)}, {percent(amount / (totals[group] or 1.0))}"
            segments.append(_segment(layer, amount, words))
        slowest = sorted(segments, key=lambda segment: -segment.amount)[:SLOWEST]
        strips.append(
            Strip(
                ", ".join(group),
                microseconds(totals[group]),
                tuple(segments),
                totals[group] / longest,
                _source(report, group[0]),
                tuple(slowest),
            )
        )
    return strips


def _codes(report: JobReport) -> list[Strip]:
    """Bytes of machine code by layer, a strip for each architecture."""
    totals = arch_totals(report.detail)
    largest = max((total.cubin_bytes for total in totals), default=0) or 1
    strips = []
    for total in totals:
        segments = []
        for layer in report.layers:
            amount = sum(result.cubin_bytes for result in layer.results_for(total.arch))
            words = f"{size(amount)}, {percent(amount / max(1, total.cubin_bytes))}"
            segments.append(_segment(layer, amount, words))
        missing = "" if total.cubins == total.cubins_of else f", {total.cubins} of {total.cubins_of} cubins"
        amount_text = f"{size(total.cubin_bytes)}{missing}"
        strips.append(Strip(total.arch, amount_text, tuple(segments), total.cubin_bytes / largest))
    return strips


def _stages(report: JobReport) -> list[Stage]:
    statistics, results = report.statistics, report.detail.results
    rewrites = {
        outcome: sum(result.rewrite_seconds for result in results if result.outcome is outcome) for outcome in Outcome
    }
    return [
        Stage("nvcc", "templates", statistics.template.spent_seconds, statistics.template.saved_seconds),
        Stage("rewrite", "weights put in, zeros deleted", rewrites[Outcome.BUILT], rewrites[Outcome.HIT]),
        Stage("ptxas", "cubins", statistics.cubin.spent_seconds, statistics.cubin.saved_seconds),
    ]


def _notes(report: JobReport) -> list[tuple[str, list[str]]]:
    """Sections of lines: failures, layers that were skipped, and deviations from the options."""
    detail = report.detail
    sections = (
        ("Failed", failure_lines([detail])),
        ("Not compiled", left_out_lines(detail)),
        ("Notes", [*lowered_lines(detail), *tuning_lines(detail.builds)]),
    )
    return [(title, [line.plain.strip() for line in lines]) for title, lines in sections]


def _segment(layer: LayerReport, amount: float, words: str) -> Segment:
    build = layer.build
    return Segment(build.layer, kind_of(build.spec), layer_id(layer), amount, words)


def _source(report: JobReport, arch: str) -> str:
    """Origin of an architecture's times: a GPU, the cost model, or both."""
    times = [layer.time_for(arch) for layer in report.layers]
    gpus = ", ".join(dict.fromkeys(time.gpu for time in times if time.measured))
    count = sum(time.measured for time in times)
    if count == len(times):
        return f"Measured on {gpus}"
    predicted = f"predicted for {report.detail.job.options.device(arch).name}"
    return f"{count} of {len(times)} measured on {gpus}, others {predicted}" if count else f"P{predicted[1:]}"
