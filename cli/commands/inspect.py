"""`farm inspect`: one job, layer by layer."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.text import Text

from cli.options.jobs import OneJob
from cli.options.output import AsJson
from cli.output.console import print_json, stdout
from cli.output.failures import failure_lines, failures_json
from cli.output.format import duration, moment, size
from cli.output.jobs import job_json, job_seconds, job_state
from cli.output.layers import (
    assembler_lines,
    code_table,
    folded_lines,
    layer_json,
    layer_table,
    left_out_lines,
    lowered_lines,
    totals_json,
    tuning_lines,
)
from farm.jobs.model import JobDetail, batches_text


def inspect(job: OneJob = "latest", as_json: AsJson = False) -> None:
    """Show a job's layers: shapes, cubins, registers, spills, seconds, bytes.

    The tables also have folded nodes, non-zeros, cache hits and deleted FMAs. The last lines of the first table sum up
    the job for each architecture. Failures are grouped by cause, with the command that reruns the first of each.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings

    with Farm.open(load_settings()) as farm:
        detail = farm.inspect(job)
    if as_json:
        layers = [layer_json(build, detail.results_of(build), detail.job.options) for build in detail.builds]
        more = {"totals": totals_json(detail), "failures": failures_json(detail)}
        print_json({**job_json(detail.job), "layers": layers, **more})
        return
    _print(detail)


def _print(detail: JobDetail) -> None:
    console = stdout()
    job = detail.job
    now = datetime.now(UTC)
    console.print(Text(f"job {job.id}  {job.name}  ", style="bold").append_text(job_state(job)))
    if job.reason:
        console.print(Text(job.reason), soft_wrap=True)
    options = job.options
    how = f"batch {batches_text(options.batches)}, {options.form} templates, ptxas -O{options.optimisation}"
    limit = f"at most {size(options.code_limit_bytes)} of code in a layer"
    seconds = job_seconds(job, now)
    ran = f"ran {duration(seconds)}" if seconds is not None else "not started"
    tries = f" in {job.tries} tries" if job.tries > 1 else ""
    console.print(Text(f"{job.model}, {how}, {limit}"), soft_wrap=True)
    console.print(Text(f"submitted {moment(job.submitted_at, now)} by {job.submitter}, {ran}{tries}"), soft_wrap=True)
    console.print()
    console.print(layer_table(detail, console.width, totals=True), soft_wrap=True)
    console.print()
    if any(result.cubin for result in detail.results):
        console.print(code_table(detail, console.width), soft_wrap=True)
    notes = (*folded_lines(detail), *tuning_lines(detail.builds), *lowered_lines(detail), *assembler_lines(detail))
    for line in (*notes, *failure_lines([detail]), *left_out_lines(detail)):
        console.print(line, soft_wrap=True)
