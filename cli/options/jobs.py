"""Arguments and options that select jobs: by id, or all of one submission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.api import Farm
    from farm.jobs.model import Job

OneJob = Annotated[str, typer.Argument(metavar="JOB", help="A job id, a unique prefix of one, or latest.")]
Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB", help="Job ids, unique prefixes of ids, or latest.", show_default=False),
]
JobsOrLatest = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB", help="Job ids or unique prefixes of ids. Default: latest.", show_default=False),
]
OfSubmission = Annotated[
    str | None,
    typer.Option("--submission", metavar="ID", help="All jobs of one submission, by the id that farm submit prints."),
]


def selected_jobs(farm: Farm, prefixes: Sequence[str] | None, submission: str | None) -> list[Job]:
    """The distinct jobs with these id prefixes, or those of a submission, oldest first; by default the latest job.

    Raises UsageError if both are given, and NotFoundError.
    """
    if prefixes and submission is not None:
        raise UsageError("jobs and --submission cannot be combined: give one of them")
    if submission is not None:
        farm.check_submission(submission)
        return farm.jobs(submission=submission)[::-1]
    return list({job.id: job for job in map(farm.job, prefixes or ["latest"])}.values())
