"""The order in which a convolution's blocks begin."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest

from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Order, Part, Tiling
from codegen.kernels import tiled
from codegen.kernels.block_order import launched_block
from codegen.selection.choose import choose_parts
from farm.cuda.measure.workload import Choice, model_cases
from farm.tuning.book import tuned_spec
from farm.tuning.files import shipped_records
from farm.tuning.record import tiling_of_json
from farm.tuning.search.layer_kinds import BY_PLACE, kinds_of
from tests.samples import checkpoint, layer

SPEC = Conv2d(16, 20, 20, 96, 1, 1)
TILING = Tiling("conv2d", 64, 1, 1, 16, 8, stages=2)
ORDERS = get_args(Order)
MEASURED_BEFORE = {512: 279.6, 2048: 149.0, 1024: 331.4}
"""Measured microseconds of tilings, by the layers' channels."""


def blocks_of(order: Order, images: int) -> list[tuple[int, int, int]]:
    """Tile, image and K group of each block, in the order in which they are launched."""
    divided = tiled(SPEC, replace(TILING, order=order))
    grid = divided.launch.grid_at(images)
    tiles, many, _ = grid
    every = list(product(*map(range, grid)))
    numbers = {block: launched_block(divided, block, grid) for block in every}
    of_number = {x + tiles * (y + many * z): block for block, (x, y, z) in numbers.items()}
    assert sorted(of_number) == list(range(len(every)))
    return [of_number[i] for i in range(len(every))]


@pytest.mark.parametrize("images", [1, 3, 64])
@pytest.mark.parametrize("order", ORDERS)
def test_each_order_runs_every_block_once(order: Order, images: int) -> None:
    blocks_of(order, images)


def test_order_place_runs_all_k_groups_of_a_position_before_the_next() -> None:
    blocks = blocks_of("place", 5)
    assert [group for _, _, group in blocks[:7]] == [0, 1, 2, 3, 4, 5, 0]
    assert len({(tile, image) for tile, image, _ in blocks[:6]}) == 1


@pytest.mark.parametrize("cluster", [2, 4])
def test_order_place_keeps_the_blocks_of_a_cluster_together(cluster: int) -> None:
    divided = tiled(replace(SPEC, data_type="float16"), replace(TILING, order="place", cluster=cluster))
    grid = divided.launch.grid_at(3)
    tiles, many, groups = grid
    first: dict[int, set[tuple[int, int]]] = {}
    for block in product(*map(range, grid)):
        x, y, z = launched_block(divided, block, grid)
        assert z % cluster == block[2] % cluster
        first.setdefault((x + tiles * (y + many * (z // cluster))) // (groups // cluster), set()).add(block[:2])
    assert all(len(places) == 1 for places in first.values())
    assert len(first) == tiles * many


def test_a_layer_whose_groups_begin_side_by_side_is_one_kernel() -> None:
    spec, tiling, nonzeros = Conv2d(512, 28, 28, 1024, 1, 1), Tiling("conv2d", 64, 1, 1, 64, 8, 3), np.full(1024, 102)
    assert len(choose_parts(spec, tiling, nonzeros)) > 1
    assert choose_parts(spec, replace(tiling, order="place"), nonzeros) == (Part(0, 16),)


def test_records_say_in_which_order_blocks_begin() -> None:
    by_place = replace(TILING, order="place")
    assert tiling_of_json(by_place.to_json()) == by_place
    assert tiling_of_json(TILING.to_json()).order == "group"
    with pytest.raises(ValueError, match="cannot be chosen"):
        tiling_of_json({**TILING.to_json(), "order": "any"})


def test_a_tuner_tries_the_first_tilings_with_their_groups_side_by_side_too() -> None:
    [case] = model_cases(checkpoint(layer("wide", spec=Conv2d(64, 28, 28, 512, 1, 1))), [], Choice(batches=(64,)))
    [kind] = kinds_of([case], "sm_90", "float32", 3, lambda spec, tiling: "direct")
    first, *others = kind.ranked
    assert {each.order for each in kind.ranked[: BY_PLACE + 1]} == {"group", "place"}
    assert replace(first, order="place" if first.order == "group" else "group") in others
    assert len(set(kind.ranked)) == len(kind.ranked)


def test_the_deep_and_strided_1x1_layers_of_resnet50_have_records_for_batch_64() -> None:
    strided = {"stride": (2, 2)}
    specs = (
        Conv2d(512, 7, 7, 2048, 1, 1),
        Conv2d(2048, 7, 7, 512, 1, 1),
        Conv2d(512, 28, 28, 1024, 1, 1, **strided),
        Conv2d(1024, 14, 14, 2048, 1, 1, **strided),
    )
    recorded = {record.key.spec: record for record in shipped_records() if record.key.batch_band == 64}
    for spec in specs:
        record = recorded[tuned_spec(spec)]
        assert (record.cold_microseconds or 0) <= 0.8 * MEASURED_BEFORE[spec.channels], spec


def test_the_usual_order_is_not_in_the_keys_of_templates() -> None:
    assert "order" not in TILING.to_json()
    assert replace(TILING, order="place").to_json()["order"] == "place"
