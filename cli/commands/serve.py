"""`farm serve`: a coordinator, which compiles pending jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.commands.cache import swept, warn_of_other_ledgers
from cli.exit_codes import OK
from cli.options.parse import address_of
from cli.output.console import stderr
from cli.output.format import built_how, date_and_time, duration
from cli.progress.eta import EVERY_SECONDS, eta_line
from farm.config.units import counted
from farm.jobs.model import Build, BuildResult, Job, Outcome, Status
from farm.scheduler.progress import Progress, RunStatus
from farm.worker.messages import Request, TemplateRequest, TemplateResult

if TYPE_CHECKING:
    from farm.api import Farm
    from farm.config.price import Price
    from farm.maintenance.gc import Sweep
    from farm.scheduler.plan import Plan
    from farm.worker.messages import Retry


def serve(
    drain: Annotated[bool, typer.Option("--drain", help="Exit when no job is pending.")] = False,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", metavar="N", min=1, help="Builds at once; all CPUs if not given.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", metavar="PORT", min=0, max=65535, help="Serve /metrics, /livez and /readyz."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", metavar="HOST", help="Address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Serve a page of jobs, workers and cache, which follows them."
        ),
    ] = None,
) -> int:
    """Run a coordinator, which claims pending jobs and compiles them, until Ctrl-C.

    Several may run at once. Ctrl-C and SIGTERM put unfinished jobs back to PENDING; the next coordinator builds only
    what is missing.

    Without --drain one of the coordinators enforces FARM_STORE_SIZE, FARM_STORE_AGE and FARM_LEDGER_AGE every hour.
    Blobs that a job in the ledger refers to, or that were used within a day, are kept.

    The page of --http is read-only; a job on it leads to its report. On an address that other machines reach it needs
    the token in FARM_HTTP_TOKEN; without that variable, one is drawn and shown on the terminal.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings

    progress = ServeProgress()
    with ExitStack() as stack:
        settings = load_settings(overrides={"jobs": jobs})
        farm = stack.enter_context(Farm.open(settings))
        if metrics_port is not None:
            metrics = stack.enter_context(farm.metrics(metrics_port, metrics_host))
            progress.line(f"metrics at {metrics.address}/metrics")
        if http is not None:
            _open_page(stack, farm, http, settings.price)
        progress.line(
            f"serving, process {os.getpid()}: starts workers, claims pending jobs until "
            f"{'none is left' if drain else 'Ctrl-C'}"
        )
        if not drain:
            if settings.store_bytes is not None or settings.store_age_seconds is not None:
                warn_of_other_ledgers(settings)
            stack.enter_context(farm.maintenance(progress))
        try:
            farm.serve(progress, drain=drain)
        except KeyboardInterrupt:
            progress.line(f"stopped: {counted(progress.unfinished, 'unfinished job')} given back")
    return OK


def _open_page(stack: ExitStack, farm: Farm, http: str, price: Price | None) -> None:
    """Serves the live page until the stack ends, and says where. A token that was drawn is shown on a terminal only."""
    from cli.report.live_server import LiveServer, checked_token, is_loopback, new_token
    from farm.config.settings import http_token

    host, port = address_of("--http", http)
    given, query = http_token(), ""
    token = None if given is None else checked_token(given)
    if token is None and not is_loopback(host) and stderr().is_terminal:
        token = new_token()
        query = f"?token={token}"
    page = stack.enter_context(LiveServer(farm, host, port, token=token, price=price))
    stderr().print(Text(f"page at {page.address}/{query}"), soft_wrap=True)


class ServeProgress(Progress):
    """The log of a coordinator on stderr: a line for each job, template and cubin, and the progress of all."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._running: set[str] = set()
        self._templates: dict[str, str] = {}
        """Descriptions of templates that are being built, by key."""
        self._stood_at = now()
        self._stood = ""

    @property
    def unfinished(self) -> int:
        """Number of jobs that have begun and not ended."""
        return len(self._running)

    def planned(self, jobs: Sequence[Job], builds: Mapping[int, Build], plan: Plan) -> None:  # noqa: ARG002 - of Progress
        """See Progress."""
        self._running |= {job.id for job in jobs}
        made = f"{counted(len(plan.templates), 'template')}, {counted(len(plan.cubins), 'cubin')}"
        self.line(f"claimed {counted(len(jobs), 'job')}: {made}")

    def submitted(self, request: Request) -> None:
        """See Progress."""
        if isinstance(request, TemplateRequest):
            self._templates[request.key] = f"template {request.spec} ({request.virtual_arch})"

    def retried(self, retry: Retry) -> None:
        """See Progress."""
        self.line(f"retry   {retry.text}", "yellow")

    def template_done(self, result: TemplateResult) -> None:
        """See Progress."""
        what = self._templates.pop(result.key, "template")
        if result.failure is not None:
            self.line(f"failed  {what}: {result.failure.message}", "red")
        elif not result.hit:
            self.line(f"made    {what} in {duration(result.seconds)}")

    def cubin_done(self, job: Job, build: Build, result: BuildResult) -> None:
        """See Progress."""
        what = f"{job.id[:8]} {job.name} {build.cubin_name(result.arch, result.part)}"
        if result.error:
            self.line(f"failed  {what}: {result.error}", "red")
        elif result.outcome is Outcome.BUILT:
            self.line(f"built   {what}: {built_how(result)}")

    def status_changed(self, status: RunStatus) -> None:
        """See Progress."""
        estimate = status.estimate
        text = eta_line(status.done, status.total, len(estimate.running), estimate.left_seconds)
        text = ", ".join(filter(None, (text, status.core_wait)))
        if self._now() - self._stood_at >= EVERY_SECONDS and text != self._stood:
            self._stood_at, self._stood = self._now(), text
            self.line(text)

    def job_done(self, job: Job) -> None:
        """See Progress."""
        self._running.discard(job.id)
        style = "" if job.status is Status.SUCCEEDED else "red"
        facts = f"{job.done} of {counted(job.total, 'cubin')}, {counted(job.hits, 'hit')}"
        self.line(f"{job.status} {job.id[:8]} {job.name}: {job.reason or facts}", style)

    def job_lost(self, job: Job) -> None:
        """See Progress."""
        self._running.discard(job.id)
        self.line(f"{job.status} {job.id[:8]} {job.name}: {job.reason or 'another coordinator runs it'}", "yellow")

    def waiting(self, text: str) -> None:
        """See Progress."""
        self.line(text, "yellow")

    def lease_troubled(self, reason: str) -> None:
        """See Progress."""
        self.line(reason, "yellow")

    def jobs_pruned(self, count: int) -> None:
        """See Progress."""
        self.line(f"retention: pruned {counted(count, 'job')}")

    def garbage_collected(self, sweep: Sweep) -> None:
        """See Progress."""
        kept = f", {counted(sweep.kept_for_jobs, 'record')} past the limit kept for jobs" if sweep.kept_for_jobs else ""
        self.line(f"retention: removed {swept(sweep)}{kept}")

    def maintenance_failed(self, reason: str) -> None:
        """See Progress."""
        self.line(f"retention: {reason}", "yellow")

    def line(self, text: str, style: str = "") -> None:
        """Print one line with the time."""
        stderr().print(Text(f"{date_and_time(datetime.now(UTC))}  {text}", style=style), soft_wrap=True)
