"""`farm cancel` and `farm retry`: change the state of existing jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.commands.submit import warn_if_unserved
from cli.options.jobs import Jobs, OfSubmission
from cli.options.output import AsJson
from cli.output.console import print_json, stderr, stdout
from cli.output.jobs import job_json
from farm.config.units import counted
from farm.errors import UsageError
from farm.jobs.model import Job, JobSet, Status

if TYPE_CHECKING:
    from farm.api import Farm

LISTED = 20
"""Maximum number of changed jobs that are listed; beyond it only the count is printed."""

Everything = Annotated[bool, typer.Option("-a", "--all", help="All jobs.")]


def cancel(
    job: Jobs = None,
    submission: OfSubmission = None,
    everything: Everything = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="With --all: do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Cancel unfinished jobs; finished cubins stay in the store.

    Their tools are killed. --all asks first, with the number of jobs. Without a terminal on stdin it needs --yes, else
    the exit code is 2.
    """
    ask = _confirm_cancelling if everything and not yes else None
    _change("cancel", lambda farm: farm.cancel, job or [], submission, everything, as_json, ask)


def retry(
    job: Jobs = None, submission: OfSubmission = None, everything: Everything = False, as_json: AsJson = False
) -> None:
    """Rerun jobs that failed, crashed or were cancelled.

    Cubins that are in the store are not built again.
    """
    _change("retry", lambda farm: farm.retry, job or [], submission, everything, as_json)


def _change(
    verb: str,
    change_of: Callable[[Farm], Callable[[JobSet], list[str]]],
    prefixes: Sequence[str],
    submission: str | None,
    everything: bool,
    as_json: bool,
    confirmed: Callable[[Farm], bool] | None = None,
) -> None:
    from farm.api import Farm
    from farm.config.settings import load_settings

    if sum((bool(prefixes), submission is not None, everything)) != 1:
        raise UsageError(f"farm {verb} takes either jobs, --submission ID or --all")
    with Farm.open(load_settings()) as farm:
        if confirmed is not None and not confirmed(farm):
            stderr().print("cancelled nothing")
            return
        named = [farm.job(prefix) for prefix in prefixes]
        if submission is not None:
            farm.check_submission(submission)
        ids = None if submission is not None or everything else tuple(job.id for job in named)
        changed = set(change_of(farm)(JobSet(ids, submission)))
        if as_json:
            print_json({"jobs": [job_json(job) for job in farm.jobs_by_id(changed)]})
        else:
            _print(verb, named, farm.jobs_by_id(changed))
        if verb == "retry" and changed:
            warn_if_unserved(farm)


def _confirm_cancelling(farm: Farm) -> bool:
    """Ask on the terminal, with the number of jobs. Raises UsageError if stdin is no terminal."""
    counts = farm.counts()
    running, pending = counts.get(Status.RUNNING, 0), counts.get(Status.PENDING, 0)
    if not running + pending:
        return True
    what = f"{counted(running + pending, 'job')} ({running:,} RUNNING, {pending:,} PENDING)"
    if not sys.stdin.isatty():
        raise UsageError(f"--all would cancel {what}: stdin is no terminal to confirm on. Add --yes.")
    # typer.confirm would write to stdout, where --json has its one document.
    stderr().print(f"Cancel {what}? [y/N]: ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _print(verb: str, named: Sequence[Job], changed: Sequence[Job]) -> None:
    done = "cancelled" if verb == "cancel" else "pending again"
    ids = {job.id for job in changed}
    if len(changed) <= LISTED:
        for job in changed:
            stdout().print(Text(f"{job.id}  {job.name}: {done}"), soft_wrap=True)
    for job in named:
        if job.id not in ids:
            stdout().print(Text(f"{job.id}  {job.name}: {_why_not(verb, job)}", style="yellow"), soft_wrap=True)
    if len(changed) != 1 and len(named) != 1:
        stdout().print(Text(f"{counted(len(changed), 'job')} {done}"))


def _why_not(verb: str, job: Job) -> str:
    if verb == "cancel":
        return f"already {job.status}"
    return "nothing to retry, it SUCCEEDED" if job.status is Status.SUCCEEDED else f"already {job.status}"
