"""What of a model is not compiled, and why: one line for each cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from cli.output.totals import coverage_line
from codegen.ir.layer_spec import SkippedLayer

if TYPE_CHECKING:
    from farm.reports.coverage import Coverage

SHOWN = 3
"""Layers of one cause that are named."""


def skipped_lines(skipped: Sequence[SkippedLayer], coverage: Coverage) -> list[Text]:
    """A line for each cause, the one that costs most multiply-adds first, and how much of the model is compiled.

    Nothing where no layer is skipped.
    """
    if not skipped:
        return []
    causes: dict[str, list[SkippedLayer]] = {}
    for layer in skipped:
        causes.setdefault(f"{layer.kind or layer.reason} {layer.operator}", []).append(layer)
    ordered = sorted(causes.values(), key=lambda layers: -sum(layer.multiply_adds or 0 for layer in layers))
    lines = [Text(f"skipped {_cause(layers, coverage)}", style="yellow") for layers in ordered]
    return [*lines, Text(coverage_line(coverage), style="bold yellow" if coverage.is_low else "")]


def _cause(layers: Sequence[SkippedLayer], coverage: Coverage) -> str:
    first = layers[0]
    sizes = f"[{_shares(layers, coverage)}]"
    if len(layers) == 1:
        return f"{first.name} ({first.operator}): {first.reason} {sizes}"
    named = ", ".join(layer.name for layer in layers[:SHOWN])
    more = f" and {len(layers) - SHOWN} more" if len(layers) > SHOWN else ""
    return f"{len(layers)} layers ({first.operator}): {first.reason} {sizes}: {named}{more}"


def _shares(layers: Sequence[SkippedLayer], coverage: Coverage) -> str:
    weights = [layer.weights for layer in layers if layer.weights is not None]
    multiply_adds = [layer.multiply_adds for layer in layers if layer.multiply_adds is not None]
    known = []
    if weights:
        known.append(f"{coverage.share_of_weights(sum(weights)):.1%} of the weights")
    if multiply_adds:
        known.append(f"{coverage.share_of_multiply_adds(sum(multiply_adds)):.1%} of the multiply-adds")
    return ", ".join(known) or "of unknown size"
