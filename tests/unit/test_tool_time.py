"""Predicted times of nvcc and ptxas, against 720 measured runs."""

from __future__ import annotations

import math
import statistics

import pytest

from tests.benchmarks.tool_time import SMALL, Point, kept_points


def scaled(tool: str) -> list[tuple[Point, float]]:
    """Each run of a tool, and its time over the prediction; the machine's speed left out."""
    points = [point for point in kept_points() if point.tool == tool and point.seconds >= SMALL]
    middle = statistics.median(point.seconds / point.predicted for point in points)
    return [(point, point.seconds / point.predicted / middle) for point in points]


@pytest.mark.parametrize(("tool", "factor"), [("nvcc", 1.5), ("ptxas", 1.65)])
def test_nine_of_ten_runs_are_within_a_factor_of_the_prediction(tool: str, factor: float) -> None:
    off = sorted(math.exp(abs(math.log(ratio))) for _, ratio in scaled(tool))
    assert off[int(0.9 * len(off))] < factor


@pytest.mark.parametrize(("least", "most"), [(0, 5_000), (5_000, 20_000), (20_000, 50_000)])
def test_kernels_of_any_size_take_together_what_is_predicted_of_them(least: float, most: float) -> None:
    points = [(point, ratio) for point, ratio in scaled("ptxas") if least <= point.instructions < most]
    taken = sum(point.predicted * ratio for point, ratio in points)
    assert 0.83 < taken / sum(point.predicted for point, _ in points) < 1.2
