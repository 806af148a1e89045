"""A layer is lowered once: what is computed of it is kept, and shared between tilings where it is the same."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from codegen.ir.layer_spec import Conv2d, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import conv2d, lower, lowering, tiled
from codegen.selection import choose, ranking
from codegen.selection.choose import choose_tiling

SPEC = Conv2d(32, 28, 28, 32, 3, 3, padding=(1, 1, 1, 1))
TILING = Tiling(28, 4, 1, 16, 8, 2)


def test_a_tiling_is_worked_out_once_however_often_it_is_asked_about() -> None:
    layer = tiled(SPEC, TILING)
    with patch.object(conv2d, "work", wraps=conv2d.work) as work, patch.object(conv2d, "launch_of") as launch:
        for _ in range(3):
            assert layer.work.streams == 2
            assert layer.launch
    assert (work.call_count, launch.call_count) == (1, 1)


@pytest.mark.parametrize("other", [replace(TILING, group_outputs=8), replace(TILING, stages=3)])
def test_tilings_that_read_the_same_input_share_its_layout(other: Tiling) -> None:
    layer = lower(SPEC)
    assert layer.tiled(TILING).input_tile is layer.tiled(other).input_tile


@pytest.mark.parametrize(
    "other", [replace(TILING, chunk_channels=4), replace(TILING, tile_width=14), replace(TILING, images=2)]
)
def test_tilings_that_read_another_input_do_not(other: Tiling) -> None:
    layer = lower(SPEC)
    assert layer.tiled(other).input_tile == tiled(SPEC, other).input_tile != layer.tiled(TILING).input_tile


def test_a_layer_is_lowered_canonical() -> None:
    assert lower(Conv2d(8, 4, 6, 8, 1, 1)).spec == Conv2d(8, 1, 24, 8, 1, 1)


@pytest.mark.parametrize("spec", [replace(SPEC, output_channels=40), Linear(300, 70)])
def test_choosing_a_tiling_lowers_the_layer_a_few_times_not_for_every_candidate(spec: Conv2d | Linear) -> None:
    nonzeros = np.full(spec.output_channels, spec.weights_count // spec.output_channels // 10)
    with (
        patch.object(choose, "lower", wraps=lower) as once,
        patch.object(ranking, "lower", wraps=lower) as again,
        patch.object(lowering, "input_tile", wraps=lowering.input_tile) as layouts,
        patch.object(conv2d, "work", wraps=conv2d.work) as works,
    ):
        choose_tiling(spec, 3, nonzeros)
    assert (once.call_count, again.call_count) == (1, 1)
    candidates = len(list(lower(spec).candidates()))
    assert works.call_count <= candidates + 1
    assert layouts.call_count <= candidates / 4
