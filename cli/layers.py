"""A job's layers as a table: what each is, what was deleted, what ptxas made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from cli.render import duration, size
from farm.jobs import Build, BuildResult, Job, Outcome

if TYPE_CHECKING:
    from farm.api import JobDetail

OUTCOME_STYLES = {Outcome.HIT: "cyan", Outcome.BUILT: "green", Outcome.FAILED: "red"}


def layer_table(detail: JobDetail, width: int) -> Table:
    """One row per layer and architecture."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("LAYER", overflow="ellipsis", no_wrap=True, max_width=max(8, width // 6))
    table.add_column("SHAPE", no_wrap=True)
    for name in ("NON-ZERO", "SPARSITY"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ARCH", no_wrap=True)
    table.add_column("CUBIN", no_wrap=True)
    for name in ("PTXAS", "REGS", "SPILL", "SIZE"):
        table.add_column(name, justify="right", no_wrap=True)
    for build in detail.builds:
        sparsity = 1 - build.nonzeros / build.spec.weights_count
        first = [build.layer, str(build.spec), f"{build.nonzeros:,}", f"{sparsity:.1%}"]
        results = detail.results_of(build)
        for result in results:
            table.add_row(*first, result.arch, *_cells(result))
            first = ["", "", "", ""]
        if not results:
            table.add_row(*first, "-", "to come", "", "", "", "")
    return table


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


def skipped_lines(job: Job) -> list[Text]:
    """What was not compiled, and why."""
    return [Text(f"skipped {layer.name} ({layer.operator}): {layer.reason}", style="yellow") for layer in job.skipped]


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
        "sparsity": 1 - build.nonzeros / build.spec.weights_count,
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
