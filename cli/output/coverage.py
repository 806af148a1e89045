"""The compiled share of a model, and the reasons of skipped layers, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cli.output.format import magnitude
from codegen.ir.layer_spec import SkippedLayer
from farm.config.units import counted

if TYPE_CHECKING:
    from farm.reports.coverage import Coverage

SHOWN = 3
"""Layers that are named for each reason."""


def coverage_line(coverage: Coverage) -> str:
    """The compiled share of a model's layers, weights and multiply-adds."""
    left = f", {coverage.skipped} skipped" if coverage.skipped else ""
    most = " at most" if coverage.of_unknown_size else ""
    weights = coverage.share_of_weights(coverage.weights)
    multiply_adds = coverage.share_of_multiply_adds(coverage.multiply_adds)
    return (
        f"{counted(coverage.compiled, 'layer')} compiled{left}:{most} {weights:.1%} of "
        f"{magnitude(coverage.all_weights)} weights, {multiply_adds:.1%} of {magnitude(coverage.all_multiply_adds)} "
        "multiply-adds an image"
    )


def coverage_json(coverage: Coverage) -> dict[str, Any]:
    """The compiled share of a model as JSON."""
    return {
        "layers": coverage.compiled,
        "layers_skipped": coverage.skipped,
        "layers_of_unknown_size": coverage.of_unknown_size,
        "weights": coverage.weights,
        "weights_total": coverage.all_weights,
        "nonzeros": coverage.nonzeros,
        "multiply_adds": coverage.multiply_adds,
        "multiply_adds_total": coverage.all_multiply_adds,
        "share_of_weights": coverage.share_of_weights(coverage.weights),
        "share_of_multiply_adds": coverage.share_of_multiply_adds(coverage.multiply_adds),
    }


def skipped_lines(skipped: Sequence[SkippedLayer], coverage: Coverage) -> list[Text]:
    """One line for each reason to skip layers, most multiply-adds first, and the coverage; empty if none is skipped."""
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
    return ", ".join(known) or "weights computed, or within a sub-graph: not counted"


def skipped_json(layer: SkippedLayer) -> dict[str, Any]:
    """A skipped layer as JSON."""
    return {
        "name": layer.name,
        "operator": layer.operator,
        "kind": layer.kind or None,
        "reason": layer.reason,
        "weights": layer.weights,
        "multiply_adds": layer.multiply_adds,
    }
