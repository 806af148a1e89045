"""The picture of a sweep: which job was worked on when, and what the cache gave it.

    python -m tests.benchmarks.timeline SUBMISSION FILE.svg

Draws a submission of the farm that `farm config show` prints; `farm report --submission` shows the same as a page.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import matplotlib
import numpy as np

from farm.api import Farm
from farm.jobs.model import Job, Outcome
from farm.reports.sweep_report import SweepReport

BINS = 200
NVCC, PTXAS, SPAN = "#d9730d", "#2563c9", "#57606b"


def draw(report: SweepReport, path: Path) -> None:
    """A row for each job, the first on top: tools at work, as high as the row for the most of any job."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    jobs = report.jobs
    curves = [report.at_work(report.of_job(job), BINS) for job in jobs]
    highest = max(float(curve.sum(axis=0).max()) for curve in curves) or 1.0
    edges = np.linspace(0.0, report.seconds, BINS + 1)
    with matplotlib.rc_context({"svg.hashsalt": "farm", "font.size": 10}):
        figure, axes = pyplot.subplots(figsize=(9.0, 0.9 + 0.42 * len(jobs)))
        for row, (job, curve) in enumerate(zip(jobs, curves, strict=True)):
            ground = len(jobs) - 1 - row
            below, above = curve.cumsum(axis=0) / highest * 0.8 + ground
            for name, colour, low, high in (
                ("nvcc, templates", NVCC, np.full(BINS, ground), below),
                ("ptxas, cubins", PTXAS, below, above),
            ):
                [at_work] = np.nonzero(high > low)
                if len(at_work):
                    shown = slice(at_work[0], at_work[-1] + 1)
                    steps = edges[at_work[0] : at_work[-1] + 2]
                    axes.stairs(high[shown], steps, baseline=low[shown], fill=True, color=colour, label=name)
            if job.started_at is not None:
                ends = [report.seconds_at(moment) for moment in (job.started_at, job.finished_at or report.end)]
                axes.plot(ends, [ground, ground], color=SPAN, linewidth=1.5, label="from its first work to its end")
        axes.set_yticks([len(jobs) - 1 - row + 0.35 for row in range(len(jobs))], [_label(report, job) for job in jobs])
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, report.seconds)
        axes.set_ylim(-0.1, len(jobs))
        axes.set_xlabel("seconds since the submission")
        axes.spines[["top", "right", "left"]].set_visible(False)
        names = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # each once
        axes.legend(
            names.values(),
            names.keys(),
            ncols=3,
            frameon=False,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            fontsize=9,
        )
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _label(report: SweepReport, job: Job) -> str:
    cubins = Counter(run.outcome for run in report.of_job(job) if not run.is_template)
    return f"{job.name}: {cubins[Outcome.HIT]} of {job.total} cached"


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: python -m tests.benchmarks.timeline SUBMISSION FILE.svg", file=sys.stderr)
        return 2
    with Farm.open() as farm:
        draw(farm.sweep_report(sys.argv[1]), Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
