"""A job as a page to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.output.failures import failure_lines
from cli.output.layers import left_out_lines, lowered_lines, tuning_lines
from cli.output.render import counted, duration, magnitude, microseconds, percent, size
from cli.output.totals import arch_totals
from cli.report.document import document, figures
from cli.report.figures import Segment, bar, kind_of, strip, strip_key
from cli.report.html import Markup, element, joined, name_of, section
from cli.report.layers import layer_cards, layer_id
from farm.jobs.model import Outcome, Status

if TYPE_CHECKING:
    from farm.reports.job_report import JobReport, LayerReport

SLOWEST = 3
"""Layers that are named below a strip of times."""


def report_page(report: JobReport) -> str:
    """The whole document."""
    parts = (_header, _figures, _times, _code, _stages, layer_cards, _notes)
    return document(f"{report.detail.job.name}: compiled layers", *(part(report) for part in parts))


def _header(report: JobReport) -> Markup:
    job = report.detail.job
    options = job.options
    made = f"{job.submitted_at:%Y-%m-%d %H:%M} UTC by {job.submitter}"
    return element(
        "header",
        element("p", "Sparse compile farm", class_="over"),
        element("h1", name_of(job.name)),
        element(
            "p",
            element("strong", str(job.status), class_=f"status {job.status.lower()}"),
            f" {', '.join(options.archs)}; batch {options.batch}; ptxas -O{options.optimisation}",
        ),
        element("p", name_of(job.model), f", job {job.id}, submitted {made}", class_="quiet"),
        element("p", job.reason, class_="reason") if job.reason and job.status is not Status.SUCCEEDED else None,
    )


def _figures(report: JobReport) -> Markup:
    coverage, statistics, job = report.coverage, report.statistics, report.detail.job
    kept, deleted = statistics.fmas_kept, statistics.fmas_deleted
    cubins = statistics.cubin
    totals = [total.cubin_bytes for total in arch_totals(report.detail)]
    ran = None
    if job.started_at is not None and job.finished_at is not None:
        ran = (job.finished_at - job.started_at).total_seconds()
    [first, *_] = report.arch_groups()
    time = report.total_microseconds(first[0])
    shown = (
        (
            percent(1 - coverage.nonzeros / coverage.weights) if coverage.weights else "-",
            "sparsity",
            f"{magnitude(coverage.nonzeros)} of {magnitude(coverage.weights)} weights are left",
        ),
        (
            percent(deleted / (kept + deleted)) if kept + deleted else "-",
            "of the multiply-adds deleted",
            f"{magnitude(kept)} of {magnitude(kept + deleted)} instructions are left in {counted(job.done, 'cubin')}",
        ),
        (size(max(totals, default=0)), "of code", "for the architecture that needs most"),
        (microseconds(time), f"for a batch of {job.options.batch}", f"{_how(report, first[0])}, {', '.join(first)}"),
        (
            duration(ran),
            "to compile",
            f"{cubins.hits} of {counted(cubins.hits + cubins.misses, 'cubin')} from the cache",
        ),
    )
    return figures(*shown)


def _times(report: JobReport) -> Markup:
    groups = report.arch_groups()
    totals = {group: report.total_microseconds(group[0]) for group in groups}
    longest = max(totals.values()) or 1.0
    shown = []
    for group in groups:
        segments = []
        for layer in report.layers:
            amount = layer.for_arch(group[0]).time.microseconds
            words = f"{microseconds(amount)}, {percent(amount / (totals[group] or 1.0))}"
            segments.append(_segment(layer, amount, words))
        slowest = sorted(segments, key=lambda segment: -segment.amount)[:SLOWEST]
        shown += [
            element("h3", ", ".join(group), element("span", f" {microseconds(totals[group])}", class_="amount")),
            strip(f"Kernel time by layer, {', '.join(group)}", segments, totals[group] / longest),
            element(
                "p",
                f"{_how(report, group[0])}. Slowest: ",
                *_listed([joined(name_of(each.name), f" {each.words}") for each in slowest]),
                class_="quiet",
            ),
        ]
    note = (
        "Each block is a layer, as wide as its kernels take; launched one by one, without what is between layers. "
        "The cost model knows one GPU, an H200."
    )
    kinds = [kind_of(layer.build.spec) for layer in report.layers]
    return section("Time", element("p", note, class_="quiet"), *shown, strip_key(kinds))


def _code(report: JobReport) -> Markup:
    totals = arch_totals(report.detail)
    largest = max((total.cubin_bytes for total in totals), default=0) or 1
    rows = []
    for total in totals:
        segments = []
        for layer in report.layers:
            amount = sum(result.cubin_bytes for result in layer.for_arch(total.arch).results_for(total.arch))
            words = f"{size(amount)}, {percent(amount / max(1, total.cubin_bytes))}"
            segments.append(_segment(layer, amount, words))
        there = "" if total.cubins == total.cubins_of else f", {total.cubins} of {total.cubins_of} cubins"
        rows += [
            element("h3", total.arch, element("span", f" {size(total.cubin_bytes)}{there}", class_="amount")),
            strip(f"Code by layer, {total.arch}", segments, total.cubin_bytes / largest),
        ]
    return section("Code", *rows, class_="code")


def _stages(report: JobReport) -> Markup:
    statistics, results = report.statistics, report.detail.results
    rewrites = {
        outcome: sum(result.rewrite_seconds for result in results if result.outcome is outcome) for outcome in Outcome
    }
    stages = (
        ("nvcc", "templates", statistics.template.spent_seconds, statistics.template.saved_seconds),
        ("rewrite", "weights put in, zeros deleted", rewrites[Outcome.BUILT], rewrites[Outcome.HIT]),
        ("ptxas", "cubins", statistics.cubin.spent_seconds, statistics.cubin.saved_seconds),
    )
    longest = max(spent + saved for _, _, spent, saved in stages) or 1.0
    rows = []
    for tool, what, spent, saved in stages:
        words = f"{duration(spent)} spent, {duration(saved)} saved by the cache"
        rows.append(
            element(
                "tr",
                element("th", tool, element("small", what), scope="row"),
                element("td", duration(spent or None)),
                element("td", duration(saved or None)),
                element("td", bar(words, ("spent", spent / longest), ("saved", saved / longest)), class_="wide"),
            )
        )
    heads = (("", None), ("spent", "spent"), ("saved", "saved"), ("", None))
    head = element("tr", *(element("th", element("i", class_=kind) if kind else None, text) for text, kind in heads))
    templates, cubins = statistics.template, statistics.cubin
    note = (
        f"CPU seconds. From the cache: {templates.hits} of {counted(templates.hits + templates.misses, 'template')}, "
        f"{cubins.hits} of {counted(cubins.hits + cubins.misses, 'cubin')}."
    )
    return section("Compiling", element("p", note, class_="quiet"), element("table", head, *rows, class_="stages"))


def _notes(report: JobReport) -> Markup | None:
    """What failed, what was left out, and what is not as it was asked for."""
    detail = report.detail
    left_out = [line.plain for line in left_out_lines(detail)]
    failed = [line.plain for line in failure_lines([detail])]
    others = [line.plain for line in (*lowered_lines(detail), *tuning_lines(detail.builds))]
    shown = [
        section(title, element("ul", *(element("li", line.strip()) for line in lines), class_="lines"))
        for title, lines in (("Failed", failed), ("Not compiled", left_out), ("Notes", others))
        if lines
    ]
    return joined(*shown) if shown else None


def _segment(layer: LayerReport, amount: float, words: str) -> Segment:
    build = layer.build
    return Segment(build.layer, kind_of(build.spec), layer_id(layer), amount, words)


def _listed(items: Sequence[Markup]) -> list[str]:
    """With commas between them."""
    return [part for i, item in enumerate(items) for part in ((", ", item) if i else (item,))]


def _how(report: JobReport, arch: str) -> str:
    """Where an architecture's times come from."""
    times = [layer.for_arch(arch).time for layer in report.layers]
    gpus = ", ".join(dict.fromkeys(time.gpu for time in times if time.measured))
    count = sum(time.measured for time in times)
    if count == len(times):
        return f"Measured on {gpus}"
    return f"{count} of {len(times)} measured on {gpus}, others predicted" if count else "Predicted"
