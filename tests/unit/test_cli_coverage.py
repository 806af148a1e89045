"""Skipped layers are listed by reason, with their share of the model."""

from __future__ import annotations

from dataclasses import replace

from cli.output.coverage import skipped_lines
from codegen.ir.layer_spec import SkippedLayer
from farm.reports.coverage import coverage_of, coverage_warning
from tests.bundle_samples import build

BUILDS = [build(0, "conv1")]  # 288 weights, 12 x 9 x 2 positions
UNKNOWN = "its height and width do not follow from the model's inputs"


def skipped(name: str, multiply_adds: int | None = 100, kind: str = "size") -> SkippedLayer:
    return SkippedLayer(name, "Conv", UNKNOWN, 36, multiply_adds, kind)


def shown(*layers: SkippedLayer) -> list[str]:
    return [line.plain for line in skipped_lines(layers, coverage_of(BUILDS, layers))]


def test_layers_skipped_for_one_reason_are_one_line_with_their_share() -> None:
    first, line = shown(*(skipped(f"conv{i}") for i in range(2, 8)))
    assert first.startswith(f"skipped 6 layers (Conv): {UNKNOWN} [")
    assert first.endswith("of the multiply-adds]: conv2, conv3, conv4 and 3 more")
    assert line.startswith("1 layer compiled, 6 skipped: ")


def test_the_reason_that_costs_most_comes_first() -> None:
    lines = shown(skipped("a", 1), skipped("b", 999, kind="other"))
    assert [line.split()[1] for line in lines[:2]] == ["b", "a"]


def test_a_layer_without_constant_weights_says_why_it_is_not_counted() -> None:
    line, _ = shown(replace(skipped("a", None), weights=None))
    assert line == f"skipped a (Conv): {UNKNOWN} [weights computed, or within a sub-graph: not counted]"


def test_without_skipped_layers_there_are_no_lines() -> None:
    assert shown() == []


def test_there_is_a_warning_below_nine_tenths_of_weights_or_multiply_adds() -> None:
    coverage = coverage_of(BUILDS, [])
    assert coverage_warning("net", coverage) is None
    low = coverage_of(BUILDS, [replace(skipped("fc"), weights=coverage.weights, multiply_adds=1)])
    text = coverage_warning("net", low)
    assert text is not None
    assert text.startswith("net: only 50.0% of the weights and ")
    assert text.endswith("1 of 2 layers are skipped: farm plan says why")
    unknown = coverage_of(BUILDS, [replace(skipped("fc"), weights=coverage.weights, multiply_adds=None)])
    upper_bounds = coverage_warning("net", unknown)
    assert upper_bounds is not None
    assert upper_bounds.startswith("net: at most 50.0% of the weights and 100.0% of the multiply-adds ")
    enough = coverage_of(BUILDS, [replace(skipped("fc"), weights=1, multiply_adds=1)])
    assert coverage_warning("net", enough) is None
