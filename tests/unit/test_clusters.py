"""Layers that are split over clusters: their architectures, and their cuts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d, DataType, LayerSpec, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import products_together, tiled
from codegen.kernels.weight_stream import slots, values
from codegen.kernels.workload import SHARED_BYTES
from codegen.sass.qualification import assembler_for
from codegen.selection.choose import choose_parts, choose_tiling, misfit_of, ranked_tilings
from codegen.selection.cost_model import predict_microseconds
from codegen.target.device_model import typical_device
from codegen.verification.compare import sample_blocks
from farm.cuda.measure.workload import Choice, model_cases
from farm.jobs.model import BuildOptions
from farm.scheduler.plan import plan
from farm.tuning.book import NO_RECORDS, TuningBook
from farm.tuning.record import TuningKey, TuningRecord, tiling_of_json
from farm.tuning.search.layer_kinds import kinds_of
from tests.samples import checkpoint, fixed_toolchain, layer
from tests.unit.test_plan import build, job

PAD = (1, 1, 1, 1)
DEEP = {
    "512 x 7 x 7": Conv2d(512, 7, 7, 512, 3, 3, padding=PAD),
    "256 x 14 x 14": Conv2d(256, 14, 14, 256, 3, 3, padding=PAD),
    "256 x 14 x 14, stride 2": Conv2d(256, 14, 14, 512, 3, 3, padding=PAD, stride=(2, 2)),
    "2048 x 7 x 7, 1x1": Conv2d(2048, 7, 7, 512, 1, 1),
}
SHALLOW = Conv2d(64, 56, 56, 64, 3, 3, padding=PAD)
BLOCKS_OF_FOUR = Tiling("cluster_conv2d", 7, 7, 1, 16, 8, 3, cluster=4)


BOUNDED = Conv2d(992, 7, 7, 128, 1, 1, bounded=True)


def tenth(spec: LayerSpec) -> NDArray[np.int64]:
    return np.full(spec.output_channels, spec.weights_count // spec.output_channels // 10)


@pytest.mark.parametrize("name", DEEP)
def test_deep_layers_of_one_image_use_clusters_if_the_architecture_has_them(name: str) -> None:
    spec = DEEP[name]
    nonzeros = tenth(spec)
    assert choose_tiling(spec, 1, nonzeros, clusters=True).cluster > 1
    assert choose_tiling(spec, 1, nonzeros).cluster == 1
    with_clusters = ranked_tilings(spec, 1, nonzeros, clusters=True)
    assert with_clusters[0] == choose_tiling(spec, 1, nonzeros, clusters=True)
    others = [each for each in with_clusters if each.kernel == "conv2d" and each.order == "group" and each.cluster == 1]
    assert tuple(others) == ranked_tilings(spec, 1, nonzeros)


def test_a_normalisation_before_a_deep_layer_does_not_keep_it_from_being_split() -> None:
    assert choose_tiling(BOUNDED, 1, tenth(BOUNDED), clusters=True).cluster > 1


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("spec", [Linear(512, 1000), Linear(1024, 1024), Linear(1280, 1000), Linear(400, 120)], ids=str)
def test_linear_layers_of_few_rows_use_clusters_if_the_architecture_has_them(spec: Linear, rows: int) -> None:
    nonzeros = tenth(spec)
    split, whole = (choose_tiling(spec, rows, nonzeros, clusters=clusters, tables=False) for clusters in (True, False))
    assert split.cluster > 1
    assert whole.cluster == 1
    # Its rows are in as few blocks as that takes: another block would fetch the same streams.
    assert tiled(spec, split).launch.grid_at(rows)[0] == 1


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_linear_layers_of_many_rows_have_large_blocks_if_the_architecture_has_clusters(data_type: DataType) -> None:
    for inputs, outputs in ((1536, 384), (384, 1536), (768, 3072)):
        spec = Linear(inputs, outputs, data_type=data_type)
        choice, other = (choose_tiling(spec, 1568, tenth(spec), clusters=clusters) for clusters in (True, False))
        assert choice.is_large
        assert tiled(spec, choice).threads == tiled(spec, choice).launch.block[0]
        assert tiled(spec, other).launch.shared_bytes <= SHARED_BYTES
        assert other.cluster == 1


def test_large_blocks_of_wide_layers_have_two_k_groups() -> None:
    packed = Linear(384, 1536, data_type="float16"), Linear(768, 3072, data_type="float16")
    for spec in (Linear(1536, 384), Linear(3072, 768), Linear(768, 3072), *packed):
        assert choose_tiling(spec, 1568, tenth(spec), clusters=True).block_groups == 2


def test_large_blocks_of_one_k_group_after_the_other_come_first_where_rows_are_few() -> None:
    spec = Linear(384, 1536)
    few, many = (choose_tiling(spec, rows, tenth(spec), clusters=True) for rows in (1568, 12544))
    assert (few.order, many.order) == ("group", "place")


def test_large_blocks_divide_many_inputs_only() -> None:
    deep, shallow = Linear(1536, 384), Linear(384, 1536)
    assert choose_tiling(deep, 1568, tenth(deep), clusters=True).cluster > 1
    assert all(each.cluster == 1 for each in ranked_tilings(shallow, 1568, tenth(shallow), clusters=True))


@pytest.mark.parametrize("spec", [SHALLOW, *DEEP.values()], ids=["64 x 56 x 56", *DEEP])
def test_large_batches_and_shallow_layers_are_not_split(spec: LayerSpec) -> None:
    for batch in (256, 1024) if spec != SHALLOW else (1, 64):
        nonzeros = tenth(spec)
        assert choose_tiling(spec, batch, nonzeros, clusters=True).cluster == 1


def test_clusters_are_ranked_only_for_few_positions() -> None:
    spec, nonzeros = DEEP["256 x 14 x 14"], tenth(DEEP["256 x 14 x 14"])

    def looked_at(batch: int) -> set[bool]:
        return {tiling.cluster > 1 for tiling in ranked_tilings(spec, batch, nonzeros, clusters=True)}

    assert looked_at(16) == {True, False}
    assert looked_at(64) == {False}


def test_only_large_blocks_of_a_cluster_have_more_than_48_kilobytes_by_prediction() -> None:
    spec = DEEP["256 x 14 x 14"]
    ranked = [tiled(spec, each) for each in ranked_tilings(spec, 8, tenth(spec), clusters=True) if not each.reads_table]
    large = [each for each in ranked if each.launch.shared_bytes > SHARED_BYTES]
    assert {each.tiling.kernel for each in large} == {"conv2d", "cluster_conv2d"}
    assert all(each.tiling.cluster > 1 and each.threads >= 256 for each in large)
    small = ranked_tilings(spec, 8, tenth(spec), clusters=True, device=typical_device("sm_120"))
    assert max(tiled(spec, each).launch.shared_bytes for each in small) <= 99 * 1024


def test_more_clusters_than_run_at_once_take_another_round() -> None:
    spec = DEEP["256 x 14 x 14"]
    split = Tiling("cluster_conv2d", 14, 14, 1, 40, 16, 3, images=4, cluster=8)
    fourteen, sixteen = (
        predict_microseconds(tiled(spec, replace(split, group_outputs=outputs)), 8, 0.1) for outputs in (40, 32)
    )
    assert sixteen > 1.3 * fourteen


@pytest.mark.parametrize("name", DEEP)
def test_parts_are_whole_clusters(name: str) -> None:
    spec = DEEP[name]
    tiling = choose_tiling(spec, 1, tenth(spec), clusters=True)
    parts = choose_parts(spec, tiling, 8 * tenth(spec))
    assert all(part.first % tiling.cluster == part.end % tiling.cluster == 0 for part in parts)
    edges = [parts[0].first, *(part.end for part in parts)]
    assert edges == sorted({0, *edges})
    assert edges[-1] == tiled(spec, tiling).streams.count


def test_sampled_blocks_are_whole_clusters() -> None:
    layer = tiled(DEEP["512 x 7 x 7"], replace(BLOCKS_OF_FOUR, group_outputs=32, cluster=8))
    blocks = set(sample_blocks(layer, layer.launch.grid_at(4), seed=0))
    assert {(x, y, z // 8 * 8 + rank) for x, y, z in blocks for rank in range(8)} == blocks
    assert {z for _, _, z in blocks} == set(range(layer.streams.count))


@given(st.sampled_from([1, 2, 4]), st.sampled_from([4, 8]), st.sampled_from([4, 8, 12]), st.integers(5, 20))
def test_streams_have_each_weight_once_and_store_each_output_channel_once(
    cluster: int, chunk: int, group: int, kernels: int
) -> None:
    spec = Conv2d(32, 5, 5, kernels, 3, 3, padding=PAD)
    has_each_weight_and_kernel_once(
        spec, Tiling("cluster_conv2d" if cluster > 1 else "conv2d", 5, 5, 1, group, chunk, 2, cluster=cluster)
    )


@given(
    st.sampled_from([2, 4, 8]),
    st.sampled_from([4, 8]),
    st.sampled_from([8, 16]),
    st.integers(1, 70),
    st.integers(1, 40),
)
def test_streams_of_a_linear_layer_do_so_if_the_last_blocks_lack_inputs(
    cluster: int, chunk: int, group: int, inputs: int, outputs: int
) -> None:
    has_each_weight_and_kernel_once(
        Linear(inputs, outputs), Tiling("linear", 32, 1, 1, group, chunk, 2, cluster=cluster)
    )


def has_each_weight_and_kernel_once(spec: LayerSpec, tiling: Tiling) -> None:
    kernels = spec.output_channels
    weights = Weights(
        np.arange(1, spec.weights_count + 1, dtype=np.float32).reshape(spec.weights_shape),
        np.arange(1, kernels + 1, dtype=np.float32),
    )
    layer = tiled(spec, tiling)
    made = values(layer, weights)
    assert made.weights.shape == (layer.streams.count, layer.streams.chunks, len(slots(layer).sums))
    assert sorted(made.weights[made.weights != 0].tolist()) == weights.kernel.ravel().tolist()
    assert made.biases[made.biases != 0].tolist() == weights.bias.tolist()
    assert not made.biases[~made.exists].any()
    blocks = layer.streams.count // layer.tiling.groups
    regions = [region for block in range(blocks) for region in layer.block_regions((0, 0, block))]
    images = max(region.images.stop for region in regions)
    times_stored = np.zeros((images, kernels), dtype=int)
    for region in regions:
        times_stored[region.images, region.outputs] += 1
    assert (times_stored == 1).all()


def test_each_stream_of_a_split_layer_has_the_bounds_of_its_channels() -> None:
    spec = Conv2d(24, 7, 7, 8, 1, 1, bounded=True)
    bounds = np.arange(48, dtype=np.float32).reshape(24, 2)
    weights = Weights(np.ones(spec.weights_shape, np.float32), np.zeros(8), bounds)
    layer = tiled(spec, Tiling("cluster_conv2d", 7, 7, 1, 4, 4, 3, cluster=2))
    of_streams = values(layer, weights).bounds
    assert of_streams.shape == (4, 3, 4, 2)  # two K groups, each of two shares
    for stream in range(4):
        first = stream % 2 * 12
        assert of_streams[stream].reshape(12, 2).tolist() == bounds[first : first + 12].tolist()


@pytest.mark.parametrize(
    "spec",
    [
        Conv2d(32, 7, 7, 32, 3, 3, padding=PAD, groups=2),
        Conv2d(32, 7, 7, 32, 3, 3, padding=PAD, data_type="float16"),
        Conv2d(40, 7, 7, 32, 3, 3, padding=PAD),
        Linear(64, 32, data_type="bfloat16"),
    ],
    ids=["groups", "float16", "channels that do not divide", "linear, bfloat16"],
)
def test_layers_that_cannot_be_split_are_not(spec: LayerSpec) -> None:
    nonzeros = tenth(spec)
    assert misfit_of(spec, replace(BLOCKS_OF_FOUR, cluster=8), nonzeros)
    split = [each for each in ranked_tilings(spec, 1, nonzeros, clusters=True) if not each.reads_table]
    assert all(each.cluster < 8 for each in split)


@pytest.mark.parametrize(
    ("spec", "split"),
    [
        (replace(DEEP["512 x 7 x 7"], data_type="float16"), Tiling("conv2d", 7, 7, 1, 32, 4, 2, images=32, cluster=4)),
        (Linear(2048, 1000, data_type="float16"), Tiling("linear", 32, 1, 1, 32, 64, 3, cluster=8)),
    ],
    ids=["a convolution", "a linear layer"],
)
def test_float16_layers_use_clusters_by_prediction_and_by_records(spec: LayerSpec, split: Tiling) -> None:
    nonzeros = tenth(spec)
    ranked = ranked_tilings(spec, 64, nonzeros, clusters=True)
    assert split in ranked
    assert ranked[0] == choose_tiling(spec, 64, nonzeros, clusters=True)
    assert ranked[0].cluster > 1 == choose_tiling(spec, 64, nonzeros).cluster
    assert not misfit_of(spec, split, nonzeros)
    key = TuningKey("sm_90", spec, 64, 0.1, "float32", 3)
    book = TuningBook.of([TuningRecord(key, "a GPU", split, 1.0, 1.0, 1, (), datetime.now(UTC))])
    [(found, choice)] = book.tilings(spec, 64, nonzeros, BuildOptions(("sm_90",), batches=(64,)))
    assert (found, choice.gpu) == (split, "a GPU")


def test_blocks_of_a_float16_cluster_pair_columns_of_one_image_and_images_of_a_part_of_the_map() -> None:
    spec = Conv2d(128, 56, 56, 128, 3, 3, padding=PAD, stride=(2, 2), data_type="float16")
    of_one, of_eight = (choose_tiling(spec, batch, tenth(spec), clusters=True) for batch in (1, 8))
    assert min(of_one.cluster, of_eight.cluster) > 1
    assert (of_one.tile_width, of_one.images) == (14, 1)
    assert (of_eight.tile_width, of_eight.images) == (28, 2)
    assert of_eight.tile_height < 28


def test_a_tuner_tries_clusters_of_a_float16_layer_among_its_first_tilings() -> None:
    spec = replace(DEEP["256 x 14 x 14"], data_type="float16")
    [case] = model_cases(checkpoint(layer("deep", spec=spec)), [], Choice(batches=(64,)))
    [kind] = kinds_of([case], "sm_90", "float32", 3, lambda spec, tiling: "direct")
    assert {each.cluster > 1 for each in kind.ranked[:20]} == {True, False}
    [older] = kinds_of([case], "sm_80", "float32", 3, lambda spec, tiling: "direct")
    assert {each.cluster for each in older.ranked} == {1}


def test_blocks_of_a_float16_cluster_have_at_most_the_products_added_up_together() -> None:
    spec = replace(DEEP["512 x 7 x 7"], data_type="float16")
    split = Tiling("conv2d", 7, 7, 1, 32, 4, 2, images=32, cluster=2)
    few, many = (np.full(spec.output_channels, count) for count in (320, 321))
    assert not misfit_of(spec, split, few)
    assert "products" in misfit_of(spec, split, many)
    assert split not in ranked_tilings(spec, 64, many, clusters=True)
    assert not misfit_of(spec, replace(split, accumulate="float16"), many)


def test_what_a_cluster_adds_up_in_float16_are_the_products_of_one_block() -> None:
    kernel = np.zeros((2, 8, 3, 3), np.float32)
    kernel[0, :4], kernel[1, 2:6] = 1.0, 1.0
    weights = Weights(kernel, np.zeros(2, np.float32))
    assert products_together(weights, Tiling("conv2d", 4, 4, 1, 2, 4, 2, images=2, cluster=2)) == 36
    assert products_together(weights, Tiling("conv2d", 4, 4, 1, 4, 4, 2, images=2, cluster=4)) == 18


def test_each_architecture_has_the_tiling_that_it_can_run() -> None:
    spec = DEEP["256 x 14 x 14"]
    options = BuildOptions(("sm_80", "sm_90", "sm_120"), batches=(1,))
    older, hopper, blackwell = [tiling for tiling, _ in NO_RECORDS.tilings(spec, 1, tenth(spec), options)]
    assert older.cluster == 1 < min(hopper.cluster, blackwell.cluster)


def test_kernels_with_clusters_are_made_of_their_own_ptx() -> None:
    split = replace(build(0, tiling=replace(BLOCKS_OF_FOUR, cluster=2)), spec=Conv2d(16, 7, 7, 16, 3, 3, padding=PAD))
    made = plan([(job(archs=("sm_90", "sm_100")), [split])], fixed_toolchain())
    assert {each.virtual_arch for each in made.templates} == {"compute_90"}
    assert {each.options for each in made.cubins} == {("-O1",)}
    assert assembler_for("direct", split.spec, split.tiling, "sm_90", "13.0") == ("direct", "")
    who, why = assembler_for("patch", split.spec, split.tiling, "sm_90", "13.0")
    assert who == "ptxas"
    assert "clusters" in why


def test_a_record_of_a_tiling_with_clusters_comes_back_and_one_without_is_as_it_was() -> None:
    assert tiling_of_json(BLOCKS_OF_FOUR.to_json()) == BLOCKS_OF_FOUR
    assert "cluster" not in replace(BLOCKS_OF_FOUR, cluster=1).to_json()
    assert tiling_of_json(replace(BLOCKS_OF_FOUR, cluster=1).to_json()).cluster == 1
