"""Verdicts of `tests.gpu.machine_times` on a kernel's times at several places."""

from __future__ import annotations

import pytest

from tests.gpu.machine_times import Side, Timed, summary

OFTEN, ONCE = (44.0, 44.0, 44.0, 47.0), (47.0, 44.0, 44.0, 44.0)


def timed(direct: tuple[float, ...], *, name: str = "conv1@64", differing: int = 0) -> Timed:
    return Timed(name, differing, Side((40.0, 40.0, 44.0, 36.0), 4), Side(direct, 4))


def test_one_slow_place_of_several_does_not_change_the_ratio() -> None:
    assert timed(OFTEN).ratio == timed(ONCE).ratio == timed((44.0,) * 4).ratio == pytest.approx(1.1)


def test_a_line_says_how_far_the_places_of_each_kernel_are_apart_and_how_many_there_are() -> None:
    line = timed(OFTEN).line
    assert "direct 1.100  same bits, 4 places: 0.900 to 1.100, 1.000 to 1.068" in line


def test_copies_at_one_address_are_one_place() -> None:
    assert "1 places" in Timed("conv1@64", 0, Side((1.0, 1.0), 2), Side((1.0, 1.0), 1)).line


def test_the_summary_names_what_is_slower_than_the_bound_and_counts_what_differs() -> None:
    mean, slow = summary([timed((41.0,)), timed((44.0,), name="conv2@1", differing=3)])
    assert mean.startswith("2 layers, 1 with a difference")
    assert mean.endswith("worst 1.100")
    assert slow == "above 1.05: conv2@1 1.100"
