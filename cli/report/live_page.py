"""The live page: jobs, workers and cache of the farm, as the ledger has them now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cli.output.format import cost_text, duration, percent
from cli.output.jobs import CLAIMED, job_seconds
from cli.progress.eta import remaining
from cli.report.figures import Figure
from cli.report.template import render
from farm.jobs.model import Job, Status

if TYPE_CHECKING:
    from farm.api import Farm
    from farm.config.price import Price

MOST_JOBS = 50
"""Jobs on the page, the newest ones."""


@dataclass(frozen=True)
class Card:
    """A job as the page shows it."""

    job: Job
    state: str
    """Status of the job, or CLAIMED."""
    seconds: float | None
    left: str
    """Predicted time to its end, in words; empty if unknown."""

    @property
    def share(self) -> float:
        """Finished share of its cubins."""
        return self.job.done / max(1, self.job.total)


def live_page(farm: Farm, price: Price | None) -> str:
    """The whole HTML document, whose script replaces the view by later ones."""
    return render("live.html.j2", **_values(farm, price))


def live_view(farm: Farm, price: Price | None) -> str:
    """The part of the document that changes."""
    return render("live_view.html.j2", **_values(farm, price))


def _values(farm: Farm, price: Price | None) -> dict[str, object]:
    now, jobs, counts = datetime.now(UTC), farm.jobs(limit=MOST_JOBS), farm.counts()
    return {
        "cards": [_card(job, now) for job in jobs],
        "left_out": max(0, sum(counts.values()) - len(jobs)),
        "coordinators": farm.coordinators(),
        "figures": _figures(farm, counts, price),
    }


def _card(job: Job, now: datetime) -> Card:
    left = remaining((job.ends_at - now).total_seconds()) if job.ends_at and job.ends_at > now else ""
    return Card(job, CLAIMED if job.claimed else str(job.status), job_seconds(job, now), left)


def _figures(farm: Farm, counts: dict[Status, int], price: Price | None) -> list[Figure]:
    statistics, claimed = farm.statistics(), farm.count_claimed()
    unsuccessful = counts.get(Status.FAILED, 0) + counts.get(Status.CRASHED, 0)
    cubin = statistics.cubin
    return [
        Figure(f"{counts.get(Status.RUNNING, 0):,}", "running", f"{claimed:,} of them not started"),
        Figure(f"{counts.get(Status.PENDING, 0):,}", "pending", ""),
        Figure(f"{counts.get(Status.SUCCEEDED, 0):,}", "succeeded", f"{unsuccessful:,} failed or crashed"),
        Figure(
            "-" if cubin.rate is None else percent(cubin.rate),
            "of cubins from the cache",
            f"{cubin.hits:,} hits, {cubin.misses:,} built",
        ),
        Figure(
            duration(statistics.saved_seconds),
            "of CPU time saved",
            f"{cost_text(statistics.spent_seconds, price)} spent"
            + (f", {price.text(statistics.saved_seconds)} saved" if price else ""),
        ),
    ]
