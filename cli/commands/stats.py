"""`farm stats`: hits, misses and time saved by the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cli.options.output import AsJson
from cli.output.console import print_json, stdout
from cli.output.format import duration, size
from cli.output.table import plain_table

if TYPE_CHECKING:
    from farm.ledger import StageStatistics, Statistics


def stats(
    zero: Annotated[bool, typer.Option("--zero", help="Restart the counters at zero; deletes nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show cache hits and misses, tool time spent and saved, deleted FMAs, bytes.

    The hit rate is hits / (hits + misses); failures count as neither. A job whose cubins are all cached looks up no
    template. SAVED is the tool time that cached results took when they were built. Pruned jobs no longer count.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings

    with Farm.open(load_settings()) as farm:
        if zero:
            farm.zero_statistics()
        found = farm.statistics()
    if as_json:
        print_json(_json(found))
    else:
        _print(found, stdout())


def _print(found: Statistics, console: Console) -> None:
    table = plain_table(console.width)
    for name in ("STAGE", "HITS", "MISSES", "HIT RATE", "TOOL", "SPENT", "SAVED"):
        table.add_column(name, justify="left" if name in ("STAGE", "TOOL") else "right")
    stages = [("template", "nvcc", found.template), ("cubin", "ptxas", found.cubin)]
    if found.skeleton.hits or found.skeleton.misses:
        stages.insert(1, ("skeleton", "ptxas", found.skeleton))
    for stage, tool, values in stages:
        rate = "-" if values.rate is None else f"{values.rate:.1%}"
        times = duration(values.spent_seconds), duration(values.saved_seconds)
        table.add_row(stage, f"{values.hits:,}", f"{values.misses:,}", rate, tool, *times)
    console.print(table)
    fmas = found.fmas_kept + found.fmas_deleted
    share = f" of {fmas:,} ({found.fmas_deleted / fmas:.1%})" if fmas else ""
    console.print(f"FMAs deleted  {found.fmas_deleted:,}{share}")
    console.print(f"cubins        {size(found.built_bytes)} built, {size(found.hit_bytes)} from the cache", end="")
    without = f", {found.direct:,} of {found.cubin.misses:,} assembled without ptxas" if found.direct else ""
    console.print((f", {found.failed:,} failed" if found.failed else "") + without)
    since = "" if found.since is None else f" since {found.since.astimezone():%Y-%m-%d %H:%M:%S}"
    console.print(f"counted       all results in the ledger{since}")


def _json(found: Statistics) -> dict[str, Any]:
    return {
        "since": found.since.isoformat() if found.since else None,
        "template": _stage_json(found.template),
        "skeleton": _stage_json(found.skeleton),
        "cubin": _stage_json(found.cubin),
        "direct": found.direct,
        "failed": found.failed,
        "fmas_kept": found.fmas_kept,
        "fmas_deleted": found.fmas_deleted,
        "built_bytes": found.built_bytes,
        "hit_bytes": found.hit_bytes,
    }


def _stage_json(values: StageStatistics) -> dict[str, Any]:
    return {
        "hits": values.hits,
        "misses": values.misses,
        "rate": values.rate,
        "spent_seconds": values.spent_seconds,
        "saved_seconds": values.saved_seconds,
    }
