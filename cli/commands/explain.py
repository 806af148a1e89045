"""`farm explain`: why a build was a cache hit or a miss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cli.options.output import AsJson
from cli.output.console import print_json, stdout
from farm.errors import UsageError
from farm.jobs.model import batches_text

if TYPE_CHECKING:
    from farm.reports.explanation import Explanation

OUTCOMES = {"hit": ("hit", "green"), "built": ("miss, built", "yellow"), "failed": ("failed", "red")}


def explain(
    build: Annotated[str, typer.Argument(metavar="BUILD", help="JOB/LAYER or JOB/LAYER/ARCH.")], as_json: AsJson = False
) -> None:
    """Explain why a build was a cache hit or a miss.

    Shows its key next to the most similar earlier one. The build is compared with earlier builds of layers that have
    the same name and shape, the same weights, or the same template. The nearest key shares most fields; ties go to a
    layer of the same name, then to the newest.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings

    if not build.partition("/")[2]:
        raise UsageError(f"'{build}': expected JOB/LAYER or JOB/LAYER/ARCH, as in latest/conv1/sm_90")
    with Farm.open(load_settings()) as farm:
        job, explanations = farm.explain(build)
    if as_json:
        print_json({"job": job.id, "build": build, "explanations": [_json(each) for each in explanations]})
        return
    console = stdout()
    for outcome, lines, names in _grouped(explanations):
        words, style = OUTCOMES[outcome]
        console.print(Text.assemble(f"{', '.join(names)}: ", (words, style)), soft_wrap=True)
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)


def _grouped(explanations: list[Explanation]) -> list[tuple[str, tuple[str, ...], list[str]]]:
    """Explanations as (outcome, lines, names), with architectures and parts of equal lines merged."""
    parts = len({each.part for each in explanations})
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for each in explanations:
        batches = f" batch {batches_text(each.batches)}" if each.batches else ""
        name = f"{each.arch}{batches}" if parts == 1 else f"{each.arch}{batches} part {each.part + 1}"
        lines = each.lines
        if each.nearest is not None and each.differences:
            use = each.nearest
            lines = (f"nearest: {use.layer} {use.arch} of job {use.job} ({use.name}); differences:", *lines)
        groups.setdefault((each.outcome.value, lines), []).append(name)
    return [(outcome, lines, names) for (outcome, lines), names in groups.items()]


def _json(each: Explanation) -> dict[str, Any]:
    nearest = each.nearest
    return {
        "arch": each.arch,
        "batches": list(each.batches),
        "part": each.part,
        "outcome": each.outcome.value,
        "because": list(each.lines),
        "nearest": None
        if nearest is None
        else {"job": nearest.job, "name": nearest.name, "layer": nearest.layer, "arch": nearest.arch},
        "differences": {name: {"before": pair[0], "now": pair[1]} for name, pair in each.differences.items()},
    }
