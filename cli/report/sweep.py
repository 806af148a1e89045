"""A submission as a page to look at: which job was worked on when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cli.output.render import counted, duration, percent
from cli.report.document import document, figures
from cli.report.html import Markup, element, name_of, section
from farm.jobs.model import Job, Outcome, Status

if TYPE_CHECKING:
    from farm.ledger import TimedRun
    from farm.reports.sweep_report import SweepReport

BINS = 240
"""Steps of a curve from left to right."""
HEIGHT = 100
"""Of a curve, in units of its own."""
MARKS = 4
"""Parts that the marks divide the time into."""


def sweep_page(report: SweepReport) -> str:
    """The whole document."""
    return document(f"submission {report.submission}", _header(report), _figures(report), _timeline(report))


def _header(report: SweepReport) -> Markup:
    first = report.jobs[0]
    counts = Counter(job.status for job in report.jobs)
    states = [element("strong", f"{counts[each]} {each}", class_=f"status {each.lower()}") for each in Status]
    shown = [state for state, each in zip(states, Status, strict=True) if counts[each]]
    return element(
        "header",
        element("p", "Sparse compile farm", class_="over"),
        element("h1", counted(len(report.jobs), "job")),
        element("p", *shown, f" {', '.join(first.options.archs)}; batch {first.options.batch}"),
        element(
            "p",
            f"submission {report.submission}, submitted {report.begin:%Y-%m-%d %H:%M} UTC by ",
            name_of(first.submitter),
            class_="quiet",
        ),
    )


def _figures(report: SweepReport) -> Markup:
    cubins = [run for run in report.runs if not run.is_template]
    hits = [run for run in cubins if run.outcome is Outcome.HIT]
    made = [run for run in report.runs if run.outcome is not Outcome.HIT]
    first = min((job.finished_at for job in report.jobs if job.finished_at), default=None)
    ended = all(job.status.final for job in report.jobs)
    tools = sum(run.seconds for run in made)
    nvcc = sum(run.seconds for run in made if run.is_template)
    return figures(
        (
            duration(report.seconds),
            "from submission to the last end" if ended else "since it was submitted",
            f"the first job ended after {duration(report.seconds_at(first))}" if first else "no job has ended",
        ),
        (
            percent(len(hits) / len(cubins)) if cubins else "-",
            "of the cubins from the cache",
            f"{len(hits):,} of {counted(len(cubins), 'cubin')}",
        ),
        (duration(tools), "of CPU time", f"{duration(nvcc)} of nvcc for templates, the rest for cubins"),
        (duration(sum(run.seconds for run in hits)), "saved by the cache", "what the cubins that were found took once"),
    )


def _timeline(report: SweepReport) -> Markup:
    curves = {job.id: report.at_work(report.of_job(job), BINS) for job in report.jobs}
    highest = max((float(curve.sum(axis=0).max()) for curve in curves.values()), default=0.0) or 1.0
    together = np.sum(list(curves.values()), axis=0)
    peak = float(together.sum(axis=0).max()) or 1.0
    said = f"up to {peak:.1f} tools at work at once"
    whole = element(
        "div",
        element("div", element("b", "All jobs"), element("small", said), class_="job"),
        _curve(together, peak, f"All jobs: {said}"),
        class_="row whole",
    )
    rows = [_row(report, job, curves[job.id], highest) for job in report.jobs]
    note = (
        "From left to right the time since the submission, upwards how many tools were at work. What several jobs need "
        "is made for the first of them, and found for the others."
    )
    key = element(
        "ul",
        element("li", element("i", class_="nvcc"), "nvcc, templates"),
        element("li", element("i", class_="ptxas"), "rewrite and ptxas, cubins"),
        element("li", element("i", class_="span"), "from the first work to the end"),
        class_="key",
        aria_label="Colours",
    )
    return section("Timeline", element("p", note, class_="quiet"), key, whole, _marks(report), *rows, class_="timeline")


def _row(report: SweepReport, job: Job, curve: NDArray[np.float64], highest: float) -> Markup:
    said = _said(job, report.of_job(job))
    begin = None if job.started_at is None else report.seconds_at(job.started_at)
    end = report.seconds_at(job.finished_at or report.end)
    when = "not begun" if begin is None else f"{duration(begin)} to {duration(end)}"
    span = None
    if begin is not None:
        left, width = begin / report.seconds, max(end - begin, 0.0) / report.seconds
        span = element("i", class_="span", style=f"left:{left:.2%};width:{min(width, 1 - left):.2%}")
    state = None if job.status is Status.SUCCEEDED else element("strong", str(job.status), class_=job.status.lower())
    return element(
        "div",
        element("div", element("b", name_of(job.name)), state, element("small", f"{when}; {said}"), class_="job"),
        element("div", _curve(curve, highest, f"{job.name}: {when}; {said}"), span, class_="lane"),
        class_="row",
    )


def _said(job: Job, runs: Sequence[TimedRun]) -> str:
    cubins = Counter(run.outcome for run in runs if not run.is_template)
    failed = f", {cubins[Outcome.FAILED]} failed" if cubins[Outcome.FAILED] else ""
    return f"{job.done} of {counted(job.total, 'cubin')}, {cubins[Outcome.HIT]} cached{failed}"


def _marks(report: SweepReport) -> Markup:
    marks = (element("span", duration(report.seconds * i / MARKS)) for i in range(MARKS + 1))
    return element("div", element("div", class_="job"), element("div", *marks, class_="marks"), class_="row axis")


def _curve(at_work: NDArray[np.float64], highest: float, words: str) -> Markup:
    """Tools at work, [2, bins], the first kind below the other; as high as the element for `highest` of them."""
    below = at_work[0] / highest * HEIGHT
    above = below + at_work[1] / highest * HEIGHT
    paths = (
        element("path", class_=kind, d=_steps(levels))
        for kind, levels in (("ptxas", above), ("nvcc", below))
        if levels.any()
    )
    box = f"0 0 {len(below)} {HEIGHT}"
    return element("svg", *paths, viewBox=box, preserveAspectRatio="none", role="img", aria_label=words)


def _steps(levels: NDArray[np.float64]) -> str:
    """The path around what is below the levels; where they stay the same, nothing is written."""
    path, last = [f"M0 {HEIGHT}"], float(HEIGHT)
    for i, level in enumerate(levels.tolist()):
        y = round(HEIGHT - level, 1)
        if y != last:
            path.append(f"H{i}V{y:g}")
            last = y
    return "".join([*path, f"H{len(levels)}V{HEIGHT}Z"])
