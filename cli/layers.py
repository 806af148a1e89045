"""A job's layers as a table: what each is, what was deleted, what ptxas made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from cli.render import counted, duration, plain_table, size
from farm.jobs import Build, BuildResult, Job, Outcome

if TYPE_CHECKING:
    from farm.api import JobDetail

OUTCOME_STYLES = {Outcome.HIT: "cyan", Outcome.BUILT: "green", Outcome.FAILED: "red"}


def layer_table(detail: JobDetail, width: int) -> Table:
    """One row per layer and architecture. A long name is wrapped, never cut."""
    table = plain_table(width)
    table.add_column("LAYER", overflow="fold")
    table.add_column("SHAPE", no_wrap=True)
    for name in ("NON-ZERO", "SPARSITY"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ARCH", no_wrap=True)
    table.add_column("CUBIN", no_wrap=True)
    for name in ("PTXAS", "REGS", "SPILL", "SIZE"):
        table.add_column(name, justify="right", no_wrap=True)
    for build in detail.builds:
        first = [build.layer, _shape(build), f"{build.nonzeros:,}", f"{_sparsity(build):.1%}"]
        results = detail.results_of(build)
        for result in results:
            table.add_row(*first, result.arch, *_cells(result))
            first = ["", "", "", ""]
        if not results:
            table.add_row(*first, "-", "to come", "", "", "", "")
    return table


def code_table(detail: JobDetail, width: int) -> Table:
    """One row per layer: what the rewriter made of its template."""
    table = plain_table(width)
    table.add_column("LAYER", overflow="fold")
    for name in ("FMAS KEPT", "DELETED"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("TEMPLATE", no_wrap=True)
    for name in ("REWRITE", "THREADS", "ROWS", "KERNELS", "CHANNELS"):
        table.add_column(name, justify="right", no_wrap=True)
    for build in detail.builds:
        made = [result for result in detail.results_of(build) if result.cubin is not None]
        if not made:
            continue
        template_seconds = max(result.template_seconds for result in made)
        tiling = build.tiling
        table.add_row(
            build.layer,
            f"{made[0].fmas_kept:,}",
            f"{made[0].fmas_deleted:,}",
            f"made in {duration(template_seconds)}" if template_seconds else "hit",
            f"{max(result.rewrite_seconds for result in made) * 1e3:.0f} ms",
            f"{tiling.tile_width}x{tiling.tile_height}",
            f"{tiling.rows}",
            f"{tiling.group_kernels}",
            f"{tiling.chunk_channels}",
        )
    return table


def _shape(build: Build) -> str:
    stride = build.spec.stride
    return f"{build.spec}" if stride == (1, 1) else f"{build.spec}, /{max(stride)}"


def _sparsity(build: Build) -> float:
    return 1 - build.nonzeros / build.spec.weights_count


def _cells(result: BuildResult) -> list[str | Text]:
    outcome = Text(str(result.outcome), style=OUTCOME_STYLES[result.outcome])
    if result.cubin is None:
        return [outcome, "-", "-", "-", "-"]
    return [
        outcome,
        duration(result.ptxas_seconds),
        str(result.registers),
        size(result.spill_bytes) if result.spill_bytes else "-",
        size(result.cubin_bytes),
    ]


def failure_lines(detail: JobDetail) -> list[Text]:
    """What failed, and how to run the tool again by hand."""
    lines = []
    for build in detail.builds:
        for result in detail.results_of(build):
            if result.error:
                lines.append(Text(f"{build.layer} {result.arch}: {result.error}", style="red"))
                if result.command:
                    lines.append(Text(f"  run again: {result.command}", style="dim"))
    return lines


def skipped_lines(job: Job) -> list[Text]:
    """What was not compiled, and why."""
    return [Text(f"skipped {layer.name} ({layer.operator}): {layer.reason}", style="yellow") for layer in job.skipped]


def compiled_line(details: Sequence[JobDetail], seconds: float) -> Text:
    """The last word of a compile: how many cubins there are, and how many of them were not made now."""
    results = [result for detail in details for result in detail.results]
    outcomes = Counter(result.outcome for result in results)
    hits, built, failed = outcomes[Outcome.HIT], outcomes[Outcome.BUILT], outcomes[Outcome.FAILED]
    templates = len({result.template_key for result in results if result.template_seconds})
    cached = f"{hits} of {counted(len(results), 'cubin')} from the cache"
    if results and hits == len(results):
        return Text(f"nothing to compile: {cached} (100% hits), {duration(seconds)}", style="green")
    share = f"{hits / len(results):.0%} hits" if results else "none yet"
    parts = [
        f"compiled {counted(built, 'cubin')}" + (f" and {counted(templates, 'template')}" if templates else ""),
        f"{cached} ({share})",
        duration(seconds),
    ]
    if failed:
        parts.insert(1, f"{failed} failed")
    return Text(", ".join(parts))


def layer_json(build: Build, results: list[BuildResult]) -> dict[str, Any]:
    """A layer as --json gives it."""
    return {
        "name": build.layer,
        "input": build.input,
        "output": build.output,
        "spec": build.spec.to_json(),
        "tiling": build.tiling.to_json(),
        "weights": build.spec.weights_count,
        "nonzeros": build.nonzeros,
        "sparsity": _sparsity(build),
        "weights_digest": build.weights,
        "cubins": [
            {
                "arch": result.arch,
                "outcome": str(result.outcome),
                "template_hit": result.template_seconds == 0,
                "template_seconds": result.template_seconds,
                "rewrite_seconds": result.rewrite_seconds,
                "ptxas_seconds": result.ptxas_seconds,
                "fmas_kept": result.fmas_kept,
                "fmas_deleted": result.fmas_deleted,
                "registers": result.registers,
                "spill_bytes": result.spill_bytes,
                "cubin": result.cubin,
                "cubin_bytes": result.cubin_bytes,
                "ptx": result.ptx,
                "template_key": result.template_key,
                "cubin_key": result.cubin_key,
                "error": result.error,
                "command": result.command,
            }
            for result in results
        ],
    }
