"""`farm stats`: hits, misses and time saved by the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cli.options.output import AsJson, PriceText
from cli.output.console import print_json, stdout
from cli.output.format import cost_json, cost_text, duration, size
from cli.output.table import plain_table

if TYPE_CHECKING:
    from farm.config.price import Price
    from farm.ledger import StageStatistics, Statistics


def stats(
    zero: Annotated[bool, typer.Option("--zero", help="Restart the counters at zero; deletes nothing.")] = False,
    price: PriceText = None,
    as_json: AsJson = False,
) -> None:
    """Show cache hits and misses, tool time spent and saved, deleted FMAs, bytes.

    The hit rate is hits / (hits + misses); failures count as neither. A job whose cubins are all cached looks up no
    template. SAVED is the tool time that cached results took when they were built, with the templates of such jobs.
    Pruned jobs no longer count. With a price, the time that all tools spent and that the cache saved is also shown as
    money.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings

    settings = load_settings(overrides={"price": price})
    with Farm.open(settings) as farm:
        if zero:
            farm.zero_statistics()
        found = farm.statistics()
    if as_json:
        print_json(_json(found, settings.price))
    else:
        _print(found, settings.price, stdout())


def _print(found: Statistics, price: Price | None, console: Console) -> None:
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
    spent, saved = found.spent_seconds, found.saved_seconds
    console.print(f"CPU time      {cost_text(spent, price)} spent, {cost_text(saved, price)} saved by the cache")
    since = "" if found.since is None else f" since {found.since.astimezone():%Y-%m-%d %H:%M:%S}"
    console.print(f"counted       all results in the ledger{since}")


def _json(found: Statistics, price: Price | None) -> dict[str, Any]:
    return {
        "since": found.since.isoformat() if found.since else None,
        "template": _stage_json(found.template),
        "skeleton": _stage_json(found.skeleton),
        "cubin": _stage_json(found.cubin),
        "spent_seconds": found.spent_seconds,
        "saved_seconds": found.saved_seconds,
        "cost": cost_json(found.spent_seconds, found.saved_seconds, price),
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
