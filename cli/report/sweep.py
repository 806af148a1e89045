"""A submission as an HTML page: plots of its checkpoints, and a timeline with a row for each job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cli.output.format import duration, percent
from cli.report.figures import Figure
from cli.report.measured import NOTHING, Measured
from cli.report.sweep_table import SERIES, sweep_plots
from cli.report.template import render
from farm.config.units import counted
from farm.jobs.model import Job, Outcome, Status

if TYPE_CHECKING:
    from farm.ledger import TimedRun
    from farm.reports.sweep_report import SweepReport

BINS = 240
"""Steps of a curve from left to right."""
HEIGHT = 100
"""Height of a curve, in units of its SVG view box."""
MARKS = 4
"""Equal parts that the marks of the time axis divide it into."""


@dataclass(frozen=True)
class Curve:
    """Tools at work over time, as SVG paths."""

    width: int
    height: int
    paths: tuple[tuple[str, str], ...]
    """Pairs of CSS class and path, the one behind first."""


@dataclass(frozen=True)
class Row:
    """A job on the timeline."""

    job: Job
    words: str
    curve: Curve
    span: tuple[float, float] | None
    """Start and length of the job, as shares of the time axis; None before it has started."""


def sweep_page(report: SweepReport, measured: Measured = NOTHING) -> str:
    """The whole HTML document."""
    archs, plots = sweep_plots(report.points, measured)
    curves = {job.id: report.at_work(report.of_job(job), BINS) for job in report.jobs}
    highest = max((float(curve.sum(axis=0).max()) for curve in curves.values()), default=0.0) or 1.0
    together = np.sum(list(curves.values()), axis=0)
    peak = float(together.sum(axis=0).max()) or 1.0
    counts = Counter(job.status for job in report.jobs)
    return render(
        "sweep.html.j2",
        report=report,
        states=[(status, counts[status]) for status in Status if counts[status]],
        figures=_figures(report),
        series=[(arch, i % SERIES) for i, arch in enumerate(archs)],
        plots=plots,
        together=_curve(together, peak),
        peak=f"up to {peak:.1f} tools at work at once",
        marks=[report.seconds * i / MARKS for i in range(MARKS + 1)],
        rows=[_row(report, job, curves[job.id], highest) for job in report.jobs],
    )


def _figures(report: SweepReport) -> list[Figure]:
    cubins = [run for run in report.runs if not run.is_template]
    hits = [run for run in cubins if run.outcome is Outcome.HIT]
    built = [run for run in report.runs if run.outcome is not Outcome.HIT]
    first = min((job.finished_at for job in report.jobs if job.finished_at), default=None)
    ended = all(job.status.final for job in report.jobs)
    tools = sum(run.seconds for run in built)
    nvcc = sum(run.seconds for run in built if run.is_template)
    return [
        Figure(
            duration(report.seconds),
            "from submission to the last end" if ended else "since it was submitted",
            f"the first job ended after {duration(report.seconds_at(first))}" if first else "no job has ended",
        ),
        Figure(
            percent(len(hits) / len(cubins)) if cubins else "-",
            "of the cubins from the cache",
            f"{len(hits):,} of {counted(len(cubins), 'cubin')}",
        ),
        Figure(duration(tools), "of CPU time", f"{duration(nvcc)} of nvcc for templates, the rest for cubins"),
        Figure(duration(sum(run.seconds for run in hits)), "saved by the cache", "the build time of the cached cubins"),
    ]


def _row(report: SweepReport, job: Job, curve: NDArray[np.float64], highest: float) -> Row:
    begin = None if job.started_at is None else report.seconds_at(job.started_at)
    end = report.seconds_at(job.finished_at or report.end)
    when = "not begun" if begin is None else f"{duration(begin)} to {duration(end)}"
    span = None
    if begin is not None:
        left, width = begin / report.seconds, max(end - begin, 0.0) / report.seconds
        span = left, min(width, 1 - left)
    return Row(job, f"{when}; {_cubins(job, report.of_job(job))}", _curve(curve, highest), span)


def _cubins(job: Job, runs: Sequence[TimedRun]) -> str:
    outcomes = Counter(run.outcome for run in runs if not run.is_template)
    failed = f", {outcomes[Outcome.FAILED]} failed" if outcomes[Outcome.FAILED] else ""
    return f"{job.done} of {counted(job.total, 'cubin')}, {outcomes[Outcome.HIT]} cached{failed}"


def _curve(at_work: NDArray[np.float64], highest: float) -> Curve:
    """Tools at work, [2, bins], nvcc stacked below ptxas; `highest` tools are as high as the curve."""
    nvcc = at_work[0] / highest * HEIGHT
    ptxas = nvcc + at_work[1] / highest * HEIGHT
    paths = tuple((kind, _path(levels)) for kind, levels in (("ptxas", ptxas), ("nvcc", nvcc)) if levels.any())
    return Curve(len(nvcc), HEIGHT, paths)


def _path(levels: NDArray[np.float64]) -> str:
    """The SVG path around the area below the levels; equal neighbours share a segment."""
    path, last = [f"M0 {HEIGHT}"], float(HEIGHT)
    for i, level in enumerate(levels.tolist()):
        y = round(HEIGHT - level, 1)
        if y != last:
            path.append(f"H{i}V{y:g}")
            last = y
    return "".join([*path, f"H{len(levels)}V{HEIGHT}Z"])
