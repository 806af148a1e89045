"""The two outputs of a lane of a float16 convolution, and their effect on blocks and launches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import launch_of, lower, products_together, tiled
from codegen.kernels.fp16_packing import Pairing, pairing
from codegen.kernels.linear import LOOPED_CHANNELS
from codegen.kernels.register_budget import held, most_registers, registers_wanted, resident_blocks
from codegen.selection.candidates import candidates
from codegen.selection.choose import choose_tiling, misfit_of
from codegen.selection.cost_model import predict_microseconds
from codegen.selection.costs.stream import Stream

WIDE = Conv2d(32, 56, 56, 32, 3, 3, padding=(1, 1, 1, 1))
HALF = replace(WIDE, data_type="float16")
ONE, TWO = (Tiling("conv2d", 56, 4, 1, 16, 8, 2, images=images) for images in (1, 2))


def test_float16_packs_images_of_an_even_number_and_columns_otherwise() -> None:
    assert [pairing(HALF.data_type, replace(ONE, images=images)) for images in (1, 2, 3, 4)] == [
        Pairing(2, 1),
        Pairing(1, 2),
        Pairing(2, 1),
        Pairing(1, 2),
    ]
    assert {pairing(kind, TWO) for kind in ("float32", "bfloat16")} == {Pairing(1, 1)}


def test_two_packed_images_take_the_threads_and_copies_of_one_in_float32() -> None:
    single = launch_of(WIDE, ONE)
    paired = launch_of(HALF, TWO)
    assert paired.block == single.block
    assert paired.shared_bytes == single.shared_bytes
    assert tiled(HALF, TWO).input_tile == tiled(WIDE, ONE).input_tile
    assert tiled(HALF, TWO).input_tile.whole_rows
    assert not tiled(HALF, ONE).input_tile.whole_rows


POINTWISE = Conv2d(64, 14, 14, 64, 1, 1, data_type="float16")


@pytest.mark.parametrize("images", [1, 2, 3])
def test_a_float16_1x1_layer_has_the_words_of_float32_on_half_the_map(images: int) -> None:
    layer = tiled(POINTWISE, Tiling("conv2d", 98, 1, 1, 16, 8, 3, images=images))
    single = tiled(replace(POINTWISE, width=7, data_type="float32"), layer.tiling)
    assert layer.pairing == Pairing(1, 1, neighbours=2)
    assert layer.input_tile == single.input_tile
    assert layer.launch.block == single.launch.block
    assert layer.launch.shared_bytes == single.launch.shared_bytes
    assert layer.workload.input_bytes == single.workload.input_bytes
    assert layer.workload.output_bytes == single.workload.output_bytes


@pytest.mark.parametrize("chunk", [8, 64])
@pytest.mark.parametrize("images", [1, 2, 8])
def test_a_thread_reaches_all_its_copies_of_whole_maps_by_one_pointer(images: int, chunk: int) -> None:
    for spec, width in ((POINTWISE, 98), (replace(POINTWISE, height=7, width=7, data_type="float32"), 49)):
        tile = tiled(spec, Tiling("conv2d", width, 1, 1, 16, chunk, 2, images=images)).input_tile
        assert (tile.unit, tile.pointers, tile.copies, tile.is_even) == (4, 1, chunk // 4, True)


def test_a_larger_filter_has_a_pointer_for_each_copy_of_whole_maps() -> None:
    """3x3 on 7x7 maps, float16, batch 32, on an H200: 40 microseconds, 54 by one pointer."""
    spec = Conv2d(512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    tile = tiled(spec, Tiling("conv2d", 7, 7, 1, 16, 8, 2, images=8)).input_tile
    assert tile.pointers == tile.copies == 2


def test_a_block_covers_both_neighbours() -> None:
    [region] = tiled(POINTWISE, Tiling("conv2d", 32, 1, 1, 16, 8, 3)).block_regions((3, 1, 1))
    assert (region.images, region.outputs) == (slice(1, 2), slice(16, 32))
    assert (region.rows, region.columns) == (slice(0, 1), slice(192, 196))


@pytest.mark.parametrize(
    "spec",
    [
        replace(POINTWISE, height=7, width=7),
        replace(POINTWISE, stride=(2, 2)),
        replace(POINTWISE, kernel_height=3, kernel_width=3, padding=(1, 1, 1, 1)),
        replace(POINTWISE, gated=True),
        replace(POINTWISE, data_type="bfloat16"),
    ],
    ids=["an odd map", "a stride", "a larger kernel", "gates", "bfloat16"],
)
def test_other_layers_have_no_neighbours_in_a_word(spec: Conv2d) -> None:
    assert lower(spec).geometry.neighbours == 1


def test_whole_maps_of_an_odd_size_are_copied_in_one_piece_whatever_the_data_type() -> None:
    spec = Conv2d(32, 7, 7, 32, 3, 3, padding=(1, 1, 1, 1))
    single, paired = (Tiling("conv2d", 7, 7, 1, 16, 8, 2, images=images) for images in (4, 8))
    tile = tiled(replace(spec, data_type="float16"), paired).input_tile
    assert tile == tiled(spec, single).input_tile
    assert tile.merged
    assert tile.unit == 4


def test_a_float16_linear_layer_has_the_looped_candidates_of_float32() -> None:
    spec = Linear(512, 1000)
    half = replace(spec, data_type="float16")
    loops, half_loops = (
        {tiling for tiling in candidates(lower(each)) if tiling.chunk_channels >= LOOPED_CHANNELS}
        for each in (spec, half)
    )
    assert half_loops == loops != set()
    assert all(tiled(half, each).workload.inputs == tiled(spec, each).workload.inputs == 128 for each in loops)


def test_a_block_covers_both_images_and_a_lone_one_takes_a_block_of_its_own() -> None:
    [region] = tiled(HALF, TWO).block_regions((0, 1, 1))
    assert (region.images, region.outputs) == (slice(2, 4), slice(16, 32))
    assert (region.rows, region.columns) == (slice(0, 4), slice(0, 56))
    assert [launch_of(HALF, TWO).grid_at(batch)[1] for batch in (1, 2, 3)] == [1, 1, 2]


def test_float16_candidates_pack_two_images_or_columns_of_one() -> None:
    offered = list(candidates(lower(HALF)))
    plain = {
        (t.tile_width, t.tile_height, t.rows, 2 * t.images, t.group_outputs, t.chunk_channels)
        for t in candidates(lower(WIDE))
    }
    paired = {
        (t.tile_width, t.tile_height, t.rows, t.images, t.group_outputs, t.chunk_channels)
        for t in offered
        if pairing(HALF.data_type, t).images == 2
    }
    assert paired == plain
    assert {t.images for t in offered if pairing(HALF.data_type, t).columns == 2} == {1}


def test_a_batch_of_many_images_is_computed_in_pairs_of_images() -> None:
    spec = Conv2d(64, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    tiling = choose_tiling(spec, 64, np.full(64, 64 * 9 // 10))
    assert pairing(spec.data_type, tiling) == Pairing(1, 2)


@pytest.mark.parametrize(("chunk", "together"), [(4, 160), (17, 160), (18, 162), (64, 576), (300, 2304)])
def test_float16_adds_up_in_float16_160_products_or_those_of_one_chunk(chunk: int, together: int) -> None:
    kernel = np.zeros((4, 256, 3, 3), np.float32)
    kernel[2] = 1
    weights = Weights(kernel, np.zeros(4, np.float32))
    tiling = Tiling("conv2d", 9, 4, 1, 4, chunk, 2)
    assert products_together(weights, tiling) == together
    assert products_together(weights, replace(tiling, accumulate="float16")) == 2304


def test_the_densest_channels_of_a_kernel_count_wherever_a_chunk_begins() -> None:
    kernel = np.zeros((2, 300), np.float32)
    kernel[0, 50:250], kernel[1, ::2] = 1, 1
    weights = Weights(kernel, np.zeros(2, np.float32))
    assert products_together(weights, Tiling("conv2d", 32, 1, 1, 2, 180, 2)) == 180


def test_a_float16_sum_goes_into_float32_as_often_as_its_products_take() -> None:
    work = tiled(HALF, replace(TWO, chunk_channels=4)).workload
    sparse, half, dense = (Stream.of(work, density).accumulations for density in (0.1, 0.7, 1.0))
    assert sparse == pytest.approx(4 * 16)  # 29 products of each of 16 sums
    assert half == pytest.approx(2 * 4 * 16)
    assert dense == pytest.approx(2 * 4 * 16)
    assert Stream.of(tiled(WIDE, ONE).workload, 0.1).accumulations == 0


@pytest.mark.parametrize(("nonzeros", "expected"), [(160, "float16"), (161, "float32")])
def test_sums_of_few_products_stay_in_float16(nonzeros: int, expected: str) -> None:
    per_kernel = np.array([3] * 31 + [nonzeros])
    assert choose_tiling(HALF, 64, per_kernel).accumulate == expected
    assert choose_tiling(HALF, 64, per_kernel, accumulate="float16").accumulate == "float16"
    assert choose_tiling(WIDE, 64, per_kernel).accumulate == "float32"


def test_sixty_four_packed_sums_are_given_the_registers_of_sixteen_warps() -> None:
    spec = replace(HALF, output_channels=64)
    packed = replace(TWO, group_outputs=64, chunk_channels=4, accumulate="float16")
    assert resident_blocks(tiled(spec, packed)) == 2
    assert resident_blocks(tiled(spec, replace(packed, tile_height=2))) == 4
    assert resident_blocks(tiled(spec, replace(packed, group_outputs=16))) == 0
    assert resident_blocks(tiled(replace(spec, output_channels=128), replace(packed, group_outputs=128))) == 0
    assert resident_blocks(tiled(replace(spec, data_type="float32"), replace(packed, images=1))) == 0


def test_groups_of_32_packed_sums_are_held_to_so_few_registers_that_more_blocks_fit() -> None:
    spec = Conv2d(64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    packed = Tiling("conv2d", 56, 4, 1, 32, 4, 2, accumulate="float16", images=2)
    assert resident_blocks(tiled(spec, packed)) == 4
    assert 65536 // (4 * tiled(spec, packed).threads) // 8 * 8 == 72
    assert resident_blocks(tiled(spec, replace(packed, chunk_channels=8))) == 0
    assert resident_blocks(tiled(spec, replace(packed, group_outputs=16))) == 0
    assert resident_blocks(tiled(spec, replace(packed, tile_height=14))) == 0


@pytest.mark.parametrize("height", range(1, 12))
def test_the_register_limit_allows_at_least_the_blocks_that_fit(height: int) -> None:
    spec = Conv2d(64, 80, 80, 64, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    tiling = Tiling("conv2d", 80, height, 1, 64, 4, 4, accumulate="float16", images=2)
    layer, lanes = tiled(spec, tiling), -(-80 * height // 32) * 32
    wanted = registers_wanted(64, layer.input_tile.pointers, held(layer))
    assert resident_blocks(layer) >= 65536 // (-(-wanted // 8) * 8 * lanes)
    assert wanted <= most_registers(layer)


def test_a_deep_convolution_of_float16_has_shorter_streams_that_more_images_follow() -> None:
    spec = Conv2d(512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1))
    single, paired = (
        choose_tiling(replace(spec, data_type=kind), 64, np.full(512, 512 * 9 // 10)) for kind in ("float32", "float16")
    )
    assert paired.group_outputs < single.group_outputs
    assert paired.images > single.images  # measured, code fetched ahead: 63 us with 16 images, 97 with 32
    assert paired.stages == 2


@pytest.mark.parametrize(
    ("spec", "least"), [(Conv2d(512, 7, 7, 2048, 1, 1), 120), (Conv2d(1024, 14, 14, 2048, 1, 1, stride=(2, 2)), 80)]
)
def test_a_deep_1x1_layer_of_float16_has_a_block_for_most_multiprocessors(spec: Conv2d, least: int) -> None:
    """Batch 8, H200: 20.9 and 12.5 microseconds with 64 and 208 blocks, 37.9 and 25.7 with 98 and 196 threads."""
    spec = replace(spec, data_type="float16")
    tiling = choose_tiling(spec, 8, np.full(2048, spec.channels // 10), clusters=True)
    launch = launch_of(spec, tiling)
    assert np.prod(launch.grid_at(8)) >= least
    assert launch.block[0] == 196


def test_sums_of_float32_that_packed_ones_wait_for_leave_room_for_seven_hundred_threads() -> None:
    spec = Conv2d(256, 14, 14, 256, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    nonzeros = np.full(256, 256 * 9 // 10)
    assert misfit_of(spec, Tiling("conv2d", 14, 14, 1, 16, 4, 2, images=8), nonzeros) == ""
    assert "registers" in misfit_of(spec, Tiling("conv2d", 14, 14, 1, 32, 4, 2, images=8), nonzeros)


def test_with_fetched_code_one_float16_block_beats_two_of_half_the_stream() -> None:
    """256 channels to 512, stride 2: 63 and 73 microseconds on an H200, 193 and 89 when code came from DRAM."""
    layer = lower(Conv2d(256, 14, 14, 512, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1), data_type="float16"))
    two, one = (layer.tiled(Tiling("conv2d", 7, 7, 1, kernels, 4, 3, "float16", images=8)) for kernels in (16, 32))
    assert predict_microseconds(one, 64, 0.1) < predict_microseconds(two, 64, 0.1)
