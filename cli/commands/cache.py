"""`farm cache`: list, verify, fill and clean the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cli.exit_codes import JOB_FAILED, OK
from cli.options.build import BuildRequest, build_options
from cli.options.output import AsJson
from cli.options.parse import bytes_of, seconds_of
from cli.output.atomic_file import write_output
from cli.output.console import print_error, print_json, print_warning, stderr, stdout
from cli.output.format import duration, size
from cli.output.table import plain_table
from cli.progress.spinner import spinner
from farm.config.units import counted
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.api import Farm
    from farm.config.settings import Settings
    from farm.maintenance.gc import Sweep
    from farm.maintenance.inventory import Item, StageSummary


app = typer.Typer(help="The store of templates, cubins and weights.", no_args_is_help=True)


@app.callback()
def cache() -> None:
    """The store of templates, cubins and weights."""


@app.command("ls")
def list_cache(
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="STAGE", help="List the entries of one stage, as in cubin.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="Only entries built by jobs of this namespace.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("-n", "--limit", metavar="N", min=1, help="With --stage: maximum number of entries. Default: 20."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the entries of the store by stage: number, size, and time since the last use.

    NEEDED counts entries that jobs in the ledger refer to. OLDEST and NEWEST are times since the last use, to the
    hour. `weights` belong to jobs; `other` are blobs of neither a record nor a job; a `ranking` is the cost model's
    order of a layer's tilings.
    """
    if limit is not None and stage is None:
        raise UsageError("--limit is for the entries of one stage: add --stage")
    most = limit or 20
    with _farm() as farm, spinner("reading the store") as tell, farm.inventory(tell) as inventory:
        summaries = {each.stage: each for each in inventory.summaries(namespace)}
        if stage is not None and stage not in summaries:
            there = ", ".join(summaries) or "none"
            holder = "the store" if namespace is None else f"namespace {namespace}"
            raise UsageError(f"--stage {stage}: {holder} has no such entries. Its stages: {there}.")
        items = [] if stage is None else inventory.items(stage, namespace, most)
        total_bytes = inventory.total_bytes
    if as_json:
        document: dict[str, Any] = {"stages": [_document(each) for each in summaries.values()]}
        if namespace is None:
            document["total_bytes"] = total_bytes
        if stage is not None:
            document["entries"] = [_item_document(each) for each in items]
        print_json(document)
    elif not summaries and total_bytes:
        stdout().print(f"no entries of the namespace {namespace}: farm cache ls shows all", soft_wrap=True)
    elif not summaries:
        stdout().print("the store is empty: farm compile fills it")
    elif stage is None:
        stdout().print(_summary_table(list(summaries.values()), stdout().width))
        if namespace is None:
            stdout().print(f"{size(total_bytes)} in all, each blob counted once")
    else:
        stdout().print(_item_table(items, stdout().width))
        if summaries[stage].entries > most:
            stdout().print(f"and {summaries[stage].entries - most:,} more, used later: raise -n")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="DIGEST", help="A blob's digest, or a unique prefix.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")],
) -> None:
    """Write one blob to a file: the PTX of a failed kernel, a cubin, a layer's weights."""
    with _farm() as farm:
        data = farm.blob(name)
    write_output(output, data, f"--output {output}")


@app.command("rm")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A record's key or a blob's digest, or a unique prefix.")],
    force: Annotated[bool, typer.Option("--force", help="Remove it even if jobs still refer to it.")] = False,
) -> None:
    """Remove one record, so that it is rebuilt on the next use, or one blob.

    A blob that no job has built, such as weights, stays in the trash for a week and comes back if it is used.
    """
    with _farm() as farm:
        removed = farm.remove_cached(name, force=force)
    rest = (
        ""
        if removed.stage == "blob"
        else "; the next use rebuilds it, and farm cache gc frees its blobs once no job needs them"
    )
    stdout().print(f"removed {removed}{rest}", soft_wrap=True)


@app.command("gc")
def collect(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DURATION", help="Remove entries unused for this long, as in 30d."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size", metavar="SIZE", help="Remove the least recently used entries until this much is left."
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="Only records built by jobs of this namespace.")
    ] = None,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="DURATION", help="Keep entries built or used within this time; at least 2h."),
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove unreferenced blobs and, beyond the limits, old entries.

    Weights and networks stay in the store's trash for a week and come back if they are used. Entries that a job refers
    to stay. Safe while jobs run, on any machine. It knows only the jobs of the configured
    database: where several databases share one bucket, it may remove what only the others need. farm serve collects
    hourly if limits are set.
    """
    from farm.maintenance.gc import Limits

    limits = Limits(
        older_than_seconds=None if older_than is None else seconds_of("--older-than", older_than),
        size_bytes=None if max_size is None else bytes_of("--max-size", max_size),
        namespace=namespace,
        grace_seconds=seconds_of("--grace", grace),
    )
    with _farm() as farm, spinner("collecting garbage") as tell:
        done = farm.collect_garbage(limits, dry_run=dry_run, tell=tell)
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "record_count": done.record_count,
                "blob_count": done.blob_count,
                "records": [each._asdict() for each in done.records],
                "blobs": list(done.blobs),
                "freed_bytes": done.bytes_freed,
                "trashed_bytes": done.bytes_trashed,
                "left_bytes": done.bytes_before - done.bytes_freed,
                "kept_for_jobs": done.kept_for_jobs,
                "kept_young": done.kept_young,
                "unsigned": done.unsigned,
            }
        )
        return
    console = stdout()
    console.print(f"{'would remove' if dry_run else 'removed'} {swept(done)}")
    if done.kept_for_jobs:
        kept = counted(done.kept_for_jobs, "record")
        console.print(f"{kept} past the limit kept for jobs: farm db prune deletes old jobs")
    if done.kept_young:
        young = "1 more entry" if done.kept_young == 1 else f"{done.kept_young:,} more entries"
        console.print(f"{young} past the limit kept: built or used within {grace} (--grace)")
    if done.unsigned:
        unsigned = counted(done.unsigned, "record")
        print_warning(f"{unsigned} without a valid signature: farm cache verify lists them, --repair removes them")


def swept(done: Sweep) -> str:
    """The records, blobs and bytes removed, and the bytes left."""
    what = f"{counted(done.record_count, 'record')} and {counted(done.blob_count, 'blob')}"
    trashed = f" ({size(done.bytes_trashed)} in the trash for a week)" if done.bytes_trashed else ""
    return f"{what}, {size(done.bytes_freed)}{trashed}; {size(done.bytes_before - done.bytes_freed)} left"


@app.command("verify")
def verify(
    repair: Annotated[bool, typer.Option("--repair", help="Remove damaged entries, so that they are rebuilt.")] = False,
    as_json: AsJson = False,
) -> int:
    """Read every blob and record and check its digest or signature; the exit code is 39 while any is damaged.

    Signatures are checked if FARM_SIGNING_KEYS is set. A record without a valid one is a cache miss.
    """
    from cli.exit_codes import BLOB_LOST, OK

    with _farm() as farm:
        counts: dict[str, int] = {}
        with spinner("verifying the store") as tell:

            def count(noun: str, so_far: int) -> None:
                counts[noun] = so_far
                tell(noun, so_far)

            damaged = list(farm.scrub(repair=repair, tell=count))
    left = [each for each in damaged if not each.removed]
    if as_json:
        found = [
            {
                "stage": each.stage,
                "name": each.name,
                "bytes": each.size_bytes,
                "removed": each.removed,
                "unsigned": each.unsigned,
            }
            for each in damaged
        ]
        print_json({"records": counts.get("records", 0), "blobs": counts.get("blobs", 0), "damaged": found})
        return BLOB_LOST if left else OK
    console = stdout()
    for each in damaged:
        what = "no valid signature" if each.unsigned else "damaged"
        console.print(f"{what}: {each.stage} {each.name}{', removed' if each.removed else ''}", soft_wrap=True)
    read = f"{counted(counts.get('records', 0), 'record')} and {counted(counts.get('blobs', 0), 'blob')}"
    console.print(f"{read} read, {len(damaged):,} damaged" + (": --repair removes them" if left and not repair else ""))
    return BLOB_LOST if left else OK


def _farm() -> Farm:
    from farm.api import Farm
    from farm.config.settings import load_settings

    settings = load_settings()
    warn_of_other_ledgers(settings)
    return Farm.open(settings)


def warn_of_other_ledgers(settings: Settings) -> None:
    """Warn where a bucket may be shared with machines whose ledgers this one does not know."""
    if settings.store_url.startswith("s3:") and settings.database_url.startswith("sqlite:"):
        stderr().print(
            "warning: only jobs in this machine's database are kept; others that use the bucket lose what is removed",
            style="yellow",
            soft_wrap=True,
        )


@app.command("warm")
@build_options(
    without={
        "optimisation",
        "assembler",
        "trust",
        "leave_dense",
        "min_sparsity",
        "allow_tf32",
        "strict",
        "keep_going",
        "name",
    }
)
def warm(request: BuildRequest) -> int:
    """Build the templates of models ahead of time, without a job.

    Only the density of the weights matters: there is one template per band of densities. Weights are not stored.
    """
    with _farm() as farm, spinner("building templates") as tell:
        made = farm.warm(request.read(farm), request.options, tell, print_warning)
    for failure in made.failures:
        print_error(failure)
    stdout().print(
        f"built {counted(made.made, 'template')} in {duration(made.seconds)} of nvcc, {counted(made.hits, 'hit')}"
    )
    return JOB_FAILED if made.failures else OK


def _document(summary: StageSummary) -> dict[str, Any]:
    return {
        "stage": summary.stage,
        "entries": summary.entries,
        "needed": summary.needed,
        "bytes": summary.size_bytes,
        "oldest_seconds": summary.oldest_seconds,
        "newest_seconds": summary.newest_seconds,
    }


def _item_document(item: Item) -> dict[str, Any]:
    return {
        "stage": item.stage,
        "name": item.name,
        "bytes": item.size_bytes,
        "unused_seconds": item.unused_seconds,
        "needed": item.needed,
    }


def _summary_table(stages: list[StageSummary], width: int) -> Table:
    table = plain_table(width)
    for name in ("STAGE", "ENTRIES", "NEEDED", "SIZE", "OLDEST", "NEWEST"):
        table.add_column(name, justify="left" if name == "STAGE" else "right")
    for each in stages:
        ages = duration(each.oldest_seconds), duration(each.newest_seconds)
        table.add_row(each.stage, f"{each.entries:,}", f"{each.needed:,}", size(each.size_bytes), *ages)
    return table


def _item_table(items: list[Item], width: int) -> Table:
    table = plain_table(width)
    for name in ("NAME", "SIZE", "UNUSED", "NEEDED"):
        table.add_column(name, justify="right" if name in ("SIZE", "UNUSED") else "left")
    for each in items:
        table.add_row(each.name, size(each.size_bytes), duration(each.unused_seconds), "yes" if each.needed else "no")
    return table
