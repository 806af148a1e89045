"""Blocks of conv2d with several K groups: their outputs and threads, and which layers and kernels have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codegen.errors import TilingError
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear, MaxPool
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import lower, tiled
from codegen.selection.block_groups import with_several_groups
from farm.tuning.record import tiling_of_json

SPEC = Conv2d(64, 14, 14, 40, 1, 1, data_type="float16")
TWO = Tiling("conv2d", 98, 1, 1, 8, 16, 2, images=2, groups=2)
FILTER = Conv2d(16, 14, 14, 40, 3, 3, padding=(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("spec", "tiling"),
    [
        (SPEC, TWO),
        (SPEC, replace(TWO, groups=4, order="place")),
        (SPEC, replace(TWO, cluster=4)),
        (FILTER, Tiling("conv2d", 14, 7, 1, 12, 4, 2, groups=2)),
    ],
)
def test_the_blocks_of_a_launch_store_each_output_once(spec: Conv2d, tiling: Tiling) -> None:
    layer, batch = tiled(spec, tiling), 3
    stored = np.zeros((batch, *spec.output_shape), dtype=int).reshape(batch, *layer.spec.output_shape)
    for block in np.ndindex(*layer.launch.grid_at(batch)):
        for region in layer.block_regions(block):
            stored[region.index(4)] += 1
    assert (stored == 1).all()


def test_each_k_group_of_a_block_has_whole_warps() -> None:
    assert tiled(SPEC, TWO).launch.block == (2 * 224, 1, 1)  # of 196 positions each
    assert tiled(SPEC, replace(TWO, groups=1)).launch.block == (196, 1, 1)


def test_a_part_of_a_layer_is_of_whole_blocks() -> None:
    layer = tiled(SPEC, TWO)
    assert layer.streams.count == 6  # five K groups, and one without outputs that fills the last block
    assert layer.launch_of(Part(2, 6)).grid_at(2) == (1, 1, 2)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (replace(FILTER, groups=2), "grouped"),
        (replace(FILTER, epilogue=(MaxPool(),)), "pool"),
        (Conv2d(16, 14, 14, 40, 1, 1, gated=True), "gates"),
    ],
)
def test_layers_that_share_no_plain_input_have_one_k_group_in_a_block(spec: Conv2d, reason: str) -> None:
    with pytest.raises(TilingError, match=reason):
        tiled(spec, Tiling("conv2d", 14, 7, 1, 4, 4, 2, groups=2))


@pytest.mark.parametrize(
    ("spec", "tiling"),
    [
        (SPEC, Tiling("table_conv2d", 98, 1, 1, 8, 16, 1, groups=2)),
        (Linear(64, 64), Tiling("linear", 32, 1, 1, 8, 16, 2, groups=2)),
    ],
)
def test_other_kernels_have_one_k_group_in_a_block(spec: LayerSpec, tiling: Tiling) -> None:
    with pytest.raises(TilingError, match="only conv2d"):
        tiled(spec, tiling)


def test_records_of_other_tilings_are_as_before() -> None:
    assert "groups" not in replace(TWO, groups=1).to_json()
    assert tiling_of_json(TWO.to_json()) == TWO


def test_tilings_near_one_share_its_block_and_vary_its_k_groups() -> None:
    lead = replace(TWO, groups=1, group_outputs=32, images=4, cluster=2)
    near = list(with_several_groups(lower(replace(SPEC, output_channels=128)), lead))
    assert {(each.groups, each.group_outputs) for each in near} >= {(2, 32), (4, 16)}
    assert {(each.tile_width, each.tile_height, each.rows) for each in near} == {(98, 1, 1)}
    assert {each.images for each in near} == {2, 4}
    assert {each.cluster for each in near} == {1, 2}


def test_no_k_group_of_their_blocks_is_without_outputs() -> None:
    lead = Tiling("conv2d", 98, 1, 1, 32, 16, 2, images=2)
    for outputs in (16, 40, 96, 160):
        for each in with_several_groups(lower(replace(SPEC, output_channels=outputs)), lead):
            assert -(-outputs // each.group_outputs) % each.groups == 0


@pytest.mark.parametrize("spec", [FILTER, replace(SPEC, height=28, width=28)])
def test_larger_maps_have_no_such_tilings(spec: Conv2d) -> None:
    lead = Tiling("conv2d", 14, 1, 1, 32, 16, 2)
    assert not list(with_several_groups(lower(spec), lead))


def test_larger_filters_have_such_tilings_on_the_smallest_maps() -> None:
    small = replace(FILTER, height=7, width=7, output_channels=64)
    lead = Tiling("conv2d", 7, 7, 1, 32, 4, 2)
    assert {each.groups for each in with_several_groups(lower(small), lead)} == {2, 4}


def test_a_block_of_one_image_pairs_no_distant_columns() -> None:
    odd = replace(SPEC, height=7, width=7, output_channels=64)
    assert {
        each.images for each in with_several_groups(lower(odd), Tiling("conv2d", 49, 1, 1, 32, 16, 2, images=2))
    } == {2}
