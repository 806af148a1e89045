"""`farm inspect`: one job, layer by layer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from cli.layers import layer_json, layer_table, skipped_lines
from cli.render import duration, job_json, job_seconds, moment, print_json, status_text, stdout


def inspect(
    job: Annotated[str, typer.Argument(help="A job's id, the beginning of one, or latest.")] = "latest",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Show a job's layers: shape, non-zeros, hits, deleted multiply-adds, registers, spills, seconds, bytes."""
    from farm.api import Farm
    from farm.settings import load_settings

    with Farm.open(load_settings()) as farm:
        detail = farm.inspect(job)
    if as_json:
        layers = [layer_json(build, detail.results_of(build)) for build in detail.builds]
        print_json({**job_json(detail.job), "layers": layers})
        return
    console = stdout()
    now = datetime.now(UTC)
    head = Text(f"job {detail.job.id}  {detail.job.name}  ", style="bold").append_text(status_text(detail.job.status))
    console.print(head)
    if detail.job.reason:
        console.print(Text(detail.job.reason))
    options = detail.job.options
    console.print(
        Text(f"{detail.job.model}, batch {options.batch}, {options.form} templates, ptxas -O{options.optimisation}")
    )
    seconds = duration(job_seconds(detail.job, now))
    console.print(Text(f"submitted {moment(detail.job.submitted_at, now)} by {detail.job.submitter}, ran {seconds}"))
    console.print()
    console.print(layer_table(detail, console.width))
    console.print()
    for build in detail.builds:
        results = detail.results_of(build)
        if not results:
            continue
        kept, deleted = results[0].fmas_kept, results[0].fmas_deleted
        made = max(result.template_seconds for result in results)
        template = f"template made in {duration(made)}" if made else "template hit"
        rewrite = f"rewrite {max(result.rewrite_seconds for result in results) * 1e3:.0f} ms"
        tiling = build.tiling
        shape = f"{tiling.tile_width}x{tiling.tile_height} threads, {tiling.rows} rows, {tiling.group_kernels} kernels"
        console.print(
            Text(f"{build.layer}: {kept:,} multiply-adds kept, {deleted:,} deleted, {template}, {rewrite}, {shape}")
        )
        for result in results:
            if result.error:
                console.print(Text(f"  {result.arch}: {result.error}", style="red"))
                if result.command:
                    console.print(Text(f"  run again: {result.command}", style="dim"))
    for line in skipped_lines(detail.job):
        console.print(line)
