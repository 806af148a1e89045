"""What `farm compile` shows while it works: bars and what runs now on a terminal, a line per result elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from cli.render import duration, size
from farm.coordination.progress import Progress
from farm.jobs import Build, BuildResult, Job, Outcome
from farm.worker.requests import Request, Retry, TemplateRequest, TemplateResult

if TYPE_CHECKING:
    from farm.coordination.plan import Plan

RUNNING_SHOWN = 8
"""Lines of what runs now."""


class CompileProgress(Progress):
    """Shows one call of `farm compile`. Use it in a `with` block."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._hits = 0
        self._built = 0
        self._templates_hit = 0
        self._templates_made = 0
        self._total = 0
        """Cubins of this call, each once for each layer that needs it."""
        self._started = False
        self._console = console
        self._quiet = quiet
        self._running: dict[str, tuple[str, float]] = {}
        self._layer_of_cubin: dict[str, str] = {}
        self._bars = Bars(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._templates = self._bars.add_task("templates", total=None, note="")
        self._cubins = self._bars.add_task("cubins", total=None, note="")
        self._live = Live(get_renderable=self._picture, console=console, refresh_per_second=8, transient=True)
        self._shows = console.is_terminal and not quiet

    def __enter__(self) -> Self:
        if self._shows:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shows:
            self._live.stop()

    def planned(self, jobs: Sequence[Job], builds: Mapping[int, Build], plan: Plan) -> None:
        """See Progress."""
        names = {job.id: job.name for job in jobs}
        self._bars.update(self._templates, total=len(plan.templates))
        self._total += sum(len(targets) for targets in plan.targets.values())
        self._bars.update(self._cubins, total=self._total)
        for key, targets in plan.targets.items():
            first = targets[0]
            self._layer_of_cubin[key] = f"{names[first.job]} {builds[first.build].cubin_name(first.arch, first.part)}"

    def submitted(self, request: Request) -> None:
        """See Progress."""
        if not self._started:
            self._started = True
            self._line(f"cache   {self._hits} of {self._total} cubins found, compiling the rest")
        self._running[request.key] = (self._what(request), time.monotonic())

    def retried(self, retry: Retry) -> None:
        """See Progress."""
        self._line(f"retry   {self._what(retry.request)}: {retry.text}", "yellow")

    def template_done(self, result: TemplateResult) -> None:
        """See Progress."""
        what, _ = self._running.pop(result.key, ("template", 0.0))
        if result.failure:
            self._line(f"failed  {what}: {result.failure.message}", "red")
        elif result.hit:
            self._templates_hit += 1
        else:
            self._templates_made += 1
            self._line(f"made    {what} in {duration(result.seconds)}")
        self._bars.update(self._templates, advance=1, note=f"{self._templates_hit} hits, {self._templates_made} made")

    def cubin_done(self, job: Job, build: Build, result: BuildResult) -> None:
        """See Progress."""
        self._running.pop(result.cubin_key, None)
        what = f"{job.name} {build.cubin_name(result.arch, result.part)}"
        if result.outcome is Outcome.HIT:
            self._hits += 1
        elif result.outcome is Outcome.BUILT:
            self._built += 1
            facts = f"{result.registers} registers, {size(result.cubin_bytes)}"
            how = f"rewrite {result.rewrite_seconds * 1e3:.0f} ms, ptxas {duration(result.ptxas_seconds)}"
            self._line(f"built   {what}: {how}, {facts}")
        else:
            self._line(f"failed  {what}: {result.error}", "red")
        self._bars.update(self._cubins, advance=1, note=f"{self._hits} hits, {self._built} built")

    def job_lost(self, job: Job) -> None:
        """See Progress."""
        self._line(f"job {job.id[:8]} is now {job.status}: {job.reason or 'another coordinator runs it'}", "yellow")

    def elsewhere(self, job: Job) -> None:
        """See Progress."""
        self._line(f"waiting for job {job.id[:8]}: another coordinator runs it", "yellow")

    def waiting(self, text: str) -> None:
        """See Progress."""
        self._line(text, "yellow")

    def _what(self, request: Request) -> str:
        if isinstance(request, TemplateRequest):
            return f"template {request.spec} ({request.virtual_arch})"
        return f"rewrite and assemble {self._layer_of_cubin.get(request.key, request.arch)}"

    def _line(self, text: str, style: str = "") -> None:
        # On a terminal the bars tell of successes; a pipe or a log gets every result.
        if not self._quiet and (style or not self._shows):
            self._console.print(Text(text, style=style), soft_wrap=True)

    def _picture(self) -> Group:
        now = time.monotonic()
        lines = [
            Text(f"  {what}  {duration(now - since)}", style="dim", overflow="ellipsis", no_wrap=True)
            for what, since in list(self._running.values())[:RUNNING_SHOWN]
        ]
        if not self._started and self._total > self._hits:
            lines.append(Text("  starting the workers", style="dim"))
        if len(self._running) > RUNNING_SHOWN:
            lines.append(Text(f"  and {len(self._running) - RUNNING_SHOWN} more", style="dim"))
        return Group(self._bars, *lines)
