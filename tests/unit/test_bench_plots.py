"""Figures from made-up results: which there are, and that nothing of the machine or the moment is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.bench.layers.plots import STYLES, plot
from farm.bench.layers.results import Results
from farm.errors import UsageError
from tests.unit.bench_results import made_up


def test_a_sweep_gives_bars_a_sweep_and_a_roofline_for_each_batch(tmp_path: Path) -> None:
    written = plot(made_up((0.5, 0.9), (64,)), tmp_path / "figures")
    names = [
        f"{kind}-float32-batch-64.{suffix}" for kind in ("speedup", "sweep", "roofline") for suffix in ("svg", "png")
    ]
    assert [path.name for path in written] == names
    for path in written:
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") or b"<?xml" in start


def test_one_sparsity_has_no_sweep_and_layers_of_their_own_sparsity_share_the_bars(tmp_path: Path) -> None:
    results = made_up((0.9,), (1,))
    assert {path.stem for path in plot(results, tmp_path)} == {"speedup-float32-batch-1", "roofline-float32-batch-1"}


def test_the_same_results_give_the_same_svg(tmp_path: Path) -> None:
    first = plot(made_up((0.9,), (1,)), tmp_path / "a")
    second = plot(made_up((0.9,), (1,)), tmp_path / "b")
    assert first[0].read_bytes() == second[0].read_bytes()


def test_peers_differ_in_more_than_colour() -> None:
    for aspect in range(4):
        assert len({str(style[aspect]) for style in STYLES.values()}) == len(STYLES)


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no time of a generated kernel"):
        plot(Results({"gpu": "g"}, {}), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        plot(made_up(), tmp_path / "file")
