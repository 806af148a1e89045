"""Progress of `farm compile`: a bar and the running tools on a terminal, else a line per result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from cli.output.format import built_how, duration
from cli.progress.eta import EVERY_SECONDS, eta_line
from farm.config.units import counted
from farm.jobs.model import Build, BuildResult, Job, Outcome
from farm.scheduler.progress import Progress, RunStatus
from farm.worker.messages import Request, Retry, TemplateRequest, TemplateResult

if TYPE_CHECKING:
    from farm.scheduler.eta import Estimate
    from farm.scheduler.plan import Plan

RUNNING_SHOWN = 8
"""Maximum number of running tools that are listed."""


class CompileProgress(Progress):
    """Shows one call of `farm compile`. Use it in a `with` block."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._hits = 0
        self._done = 0
        self._total = 0
        """Cubins of this call, counted once for each layer that needs them."""
        self._templates_made = 0
        self._started = False
        self._console = console
        self._quiet = quiet
        self._names: dict[str, str] = {}
        """Descriptions of requests that workers have, by key."""
        self._estimate: Estimate | None = None
        self._estimated_at = 0.0
        self._core_wait = ""
        self._waited_at = -EVERY_SECONDS
        """Time of the last line about a wait for a core."""
        self._layer_of_cubin: dict[str, str] = {}
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=console,
        )
        self._bar = self._bars.add_task("compiling", total=None, note="")
        self._live = Live(get_renderable=self._picture, console=console, refresh_per_second=8, transient=True)
        self._shows = console.is_terminal and not quiet

    def __enter__(self) -> Self:
        if self._shows:
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._shows:
            self._live.stop()

    def planned(self, jobs: Sequence[Job], builds: Mapping[int, Build], plan: Plan) -> None:
        """See Progress."""
        names = {job.id: job.name for job in jobs}
        self._total += sum(len(targets) for targets in plan.targets.values())
        for key, targets in plan.targets.items():
            first = targets[0]
            self._layer_of_cubin[key] = f"{names[first.job]} {builds[first.build].cubin_name(first.arch, first.part)}"

    def cut(self, job: Job, build: Build, plan: Plan) -> None:
        """See Progress."""
        self._total -= 1
        self.planned([job], {build.id: build}, plan)

    def submitted(self, request: Request) -> None:
        """See Progress."""
        if not self._started:
            self._started = True
            self._line(f"cache   {self._hits} of {counted(self._total, 'cubin')} found, compiling the rest")
        self._names[request.key] = self._what(request)

    def retried(self, retry: Retry) -> None:
        """See Progress."""
        self._line(f"retry   {self._what(retry.request)}: {retry.text}", "yellow")

    def repaired(self, name: str, warning: str) -> None:
        """See Progress."""
        self._line(f"repair  {name}: {warning}", "yellow")

    def template_done(self, result: TemplateResult) -> None:
        """See Progress."""
        what = self._names.pop(result.key, "template")
        if result.failure:
            self._line(f"failed  {what}: {result.failure.message}", "red")
            return
        if not result.hit:
            self._templates_made += 1
            self._line(f"made    {what} in {duration(result.seconds)}")

    def cubin_done(self, job: Job, build: Build, result: BuildResult) -> None:
        """See Progress."""
        self._names.pop(result.cubin_key, None)
        self._done += 1
        what = f"{job.name} {build.cubin_name(result.arch, result.part)}"
        if result.outcome is Outcome.HIT:
            self._hits += 1
        elif result.outcome is Outcome.BUILT:
            self._line(f"built   {what}: {built_how(result)}")
        else:
            self._line(f"failed  {what}: {result.error}", "red")

    def status_changed(self, status: RunStatus) -> None:
        """See Progress."""
        self._estimate, self._estimated_at = status.estimate, time.monotonic()
        self._core_wait = status.core_wait
        if self._core_wait and not self._shows and time.monotonic() - self._waited_at >= EVERY_SECONDS:
            self._waited_at = time.monotonic()
            self._line(self._core_wait, "yellow")
        self._bars.update(self._bar, total=1.0, completed=status.estimate.share)

    def job_lost(self, job: Job) -> None:
        """See Progress."""
        self._line(f"job {job.id[:8]} is now {job.status}: {job.reason or 'another coordinator runs it'}", "yellow")

    def elsewhere(self, job: Job) -> None:
        """See Progress."""
        self._line(f"waiting for job {job.id[:8]}: another coordinator runs it", "yellow")

    def waiting(self, text: str) -> None:
        """See Progress."""
        self._line(text, "yellow")

    def lease_troubled(self, reason: str) -> None:
        """See Progress."""
        self._line(reason, "yellow")

    def _what(self, request: Request) -> str:
        if isinstance(request, TemplateRequest):
            return f"template {request.spec} ({request.virtual_arch})"
        return f"rewrite and assemble {self._layer_of_cubin.get(request.key, request.arch)}"

    def _line(self, text: str, style: str = "") -> None:
        # On a terminal the bar shows successes; a pipe or a log gets a line for every result.
        if not self._quiet and (style or not self._shows):
            self._console.print(Text(text, style=style), soft_wrap=True)

    def _picture(self) -> Group:
        """The bar, which counts predicted work, and the tools that are running, with their times."""
        running = {} if self._estimate is None else self._estimate.running
        left = None if self._estimate is None else self._estimate.left_seconds
        since = time.monotonic() - self._estimated_at
        text = eta_line(self._done, self._total, len(running), None if left is None else max(0.0, left - since))
        made = f"{self._hits} found, {counted(self._templates_made, 'template')} made"
        self._bars.update(self._bar, note=f"{text} ({made})")
        names = dict(self._names)  # a copy: another thread changes it
        shown = [(names[key], seconds + since) for key, seconds in running.items() if key in names]
        lines = [
            Text(f"  {what}  {duration(seconds)}", style="dim", overflow="ellipsis", no_wrap=True)
            for what, seconds in shown[:RUNNING_SHOWN]
        ]
        if not self._started and self._total > self._hits:
            lines.append(Text("  starting the workers", style="dim"))
        if self._core_wait:
            lines.append(Text(f"  {self._core_wait}", style="yellow"))
        if len(shown) > RUNNING_SHOWN:
            lines.append(Text(f"  and {len(shown) - RUNNING_SHOWN} more", style="dim"))
        return Group(self._bars, *lines)
