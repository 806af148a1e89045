"""Convolutions whose weights are a table: what it holds, which layers have one, what is read when."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import AddResidual, Conv2d, DataType, LayerSpec, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import launch_of, lower, needs_clusters, products_together, tiled
from codegen.kernels.table_conv2d import table, tile_of
from codegen.kernels.workload import BLOCK_SHARED_BYTES
from codegen.model_zoo.pruning import random_weights
from codegen.ptx.rewrite import rewrite
from codegen.sass.cubin import CubinFile
from codegen.sass.qualification import assembler_for
from codegen.selection.choose import misfit_of, ranked_tilings
from codegen.toolchain.tools import find_toolchain
from tests.templates import shared_cubin, shared_template

SPEC = Conv2d(24, 6, 8, 13, 1, 1, epilogue=(AddResidual(),))
TILING = Tiling("table_conv2d", 24, 1, 1, 5, 24, 1)
DEEP = Conv2d(512, 7, 7, 2048, 1, 1)
WIDE = Conv2d(10, 14, 14, 13, 3, 3, padding=(1, 1, 1, 1))
WIDE_TILING = Tiling("table_conv2d", 14, 2, 1, 4, 3, 1)
ODD = Conv2d(24, 7, 7, 13, 1, 1)
ODD_TILING = Tiling("table_conv2d", 7, 1, 1, 5, 24, 1)


def share(spec: Conv2d) -> NDArray[np.int64]:
    return np.full(spec.output_channels, spec.weights_count // spec.output_channels // 10)


@pytest.mark.parametrize("data_type", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("cluster", "rows"), [(1, 1), (2, 1), (1, 2)])
def test_the_table_has_each_weight_once_with_the_place_of_its_input(
    cluster: int, rows: int, data_type: DataType
) -> None:
    tiling = replace(WIDE_TILING, cluster=cluster, rows=rows)
    layer = tiled(replace(WIDE, data_type=data_type), tiling)
    weights, tile, chunks = random_weights(WIDE, 0.7, seed=1), tile_of(layer), layer.streams.chunks * cluster
    words = table(layer, weights).view(np.uint32)
    starts = words[: WIDE.output_channels * chunks + 1].astype(np.int64)
    first = len(words) - 8 * starts[-1]
    pairs = words[first:].reshape(-1, 2)
    found = np.zeros_like(weights.kernel)
    for kernel in range(WIDE.output_channels):
        for chunk in range(chunks):
            begin, end = starts[kernel * chunks + chunk : kernel * chunks + chunk + 2] * 4
            for bits, place in pairs[begin:end]:
                channel, within = divmod(int(place) // 4, tile.plane)
                if channel == tiling.chunk_channels:
                    assert bits == 0
                else:
                    row, column = divmod(within, tile.row_places)
                    found[kernel, chunk * tiling.chunk_channels + channel, row, column] = bits.view(np.float32)
    rounded = to_float32(from_float32(weights.kernel, data_type), data_type)
    np.testing.assert_array_equal(found, rounded)


def test_sums_of_16_bit_types_are_float32_whatever_is_asked_for() -> None:
    half, bfloat = (replace(WIDE, data_type=each) for each in ("float16", "bfloat16"))
    assert products_together(random_weights(half, 0.5), replace(TILING, accumulate="float16")) == 1
    ptx = [shared_template(each, WIDE_TILING, "compute_90").ptx for each in (half, bfloat)]
    assert not [line for text in ptx for line in text.splitlines() if re.search(r"fma\.rn\.(bf16|f16)", line)]


def test_two_neighbouring_columns_of_float16_are_copied_and_stored_as_one_word() -> None:
    ptx = shared_template(replace(SPEC, data_type="float16"), TILING, "compute_90").ptx
    assert "cp.async" in ptx
    assert "st.global.cs.b32" in ptx
    assert "st.global.cs.b16" not in ptx


@pytest.mark.parametrize("data_type", ["float16", "bfloat16"])
@pytest.mark.parametrize(("spec", "tiling"), [(WIDE, WIDE_TILING), (ODD, ODD_TILING)], ids=["3x3", "1x1"])
def test_a_word_of_16_bits_has_two_positions_of_a_thread_that_has_an_even_number(
    spec: Conv2d, tiling: Tiling, data_type: DataType
) -> None:
    def places(rows: int, data_type: DataType) -> int:
        return tile_of(tiled(replace(spec, data_type=data_type), replace(tiling, rows=rows))).plane

    for rows in (2, 4, 8):
        assert places(rows, data_type) == places(rows // 2, "float32") < places(rows, "float32")
    for rows in (1, 7):
        assert places(rows, data_type) == places(rows, "float32")


def test_words_of_two_neighbouring_columns_hold_one_position_of_a_thread() -> None:
    even = replace(TILING, tile_width=8, rows=2)
    assert tile_of(tiled(replace(SPEC, data_type="float16"), even)).paired == 1
    assert tile_of(tiled(replace(SPEC, data_type="bfloat16"), even)).paired == 2


@pytest.mark.parametrize(("data_type", "loads"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_the_inputs_of_a_weight_are_a_load_for_each_word_of_positions(data_type: DataType, loads: int) -> None:
    tiling = Tiling("table_conv2d", 14, 4, 4, 13, 10, 1)  # one slice: no sums pass through shared memory
    ptx = shared_template(replace(WIDE, data_type=data_type), tiling, "compute_90").ptx
    products, inputs = (len(re.findall(opcode, ptx)) for opcode in (r"\bfma\.rn\.f32", r"\bld\.shared\.[fbu]32"))
    assert products
    assert inputs * 4 == products * loads


def test_the_code_of_a_layer_is_the_same_for_all_weights() -> None:
    template = shared_template(SPEC, TILING, "compute_90")
    codes = {
        CubinFile.read(
            shared_cubin(rewrite(template, random_weights(SPEC, 0.9, seed)).ptx, "sm_90", find_toolchain())
        ).words.tobytes()
        for seed in (1, 2)
    }
    assert len(codes) == 1


def test_its_launch_says_that_it_waits_and_others_do_not() -> None:
    launch = launch_of(SPEC, TILING)
    assert launch.waits
    assert Launch.from_json(launch.to_json()) == launch
    assert not launch_of(SPEC, Tiling("conv2d", 24, 1, 1, 5, 8, 2)).waits
    assert not launch_of(Linear(64, 8), Tiling("table_linear", 128, 1, 1, 4, 64, 1)).waits


@pytest.mark.parametrize(
    "spec",
    [replace(SPEC, groups=1, bounded=True), replace(SPEC, gated=True), Conv2d(8, 6, 6, 8, 3, 3, groups=8)],
    ids=["bounds", "gates", "groups"],
)
def test_other_layers_have_no_such_kernel(spec: LayerSpec) -> None:
    assert "table_conv2d" not in lower(spec).kernels


def test_it_is_for_architectures_with_clusters_and_made_by_ptxas() -> None:
    assert needs_clusters(TILING)
    assert not needs_clusters(Tiling("conv2d", 24, 1, 1, 5, 8, 2))
    assert not needs_clusters(Tiling("table_linear", 128, 1, 1, 4, 64, 1))
    made_by, reason = assembler_for("auto", SPEC, TILING, "sm_90", "13.0.88")
    assert made_by == "ptxas"
    assert "table" in reason


def test_what_does_not_fit_a_multiprocessor_or_a_cluster_is_refused() -> None:
    good = Tiling("table_conv2d", 25, 1, 1, 32, 256, 1, cluster=2)
    assert misfit_of(DEEP, good, share(DEEP)) == ""
    assert launch_of(DEEP, good).shared_bytes <= BLOCK_SHARED_BYTES
    for bad in (replace(good, group_outputs=33, cluster=2), replace(good, group_outputs=40), replace(good, rows=60)):
        assert misfit_of(DEEP, bad, share(DEEP)) == "it needs more threads, registers or shared memory than there are"


def test_in_float32_it_is_tried_but_not_chosen_without_a_record() -> None:
    ranked = ranked_tilings(DEEP, 1, share(DEEP), clusters=True)
    assert not ranked[0].reads_table
    tables = [each for each in ranked if each.kernel == "table_conv2d"]
    assert tables
    assert all(misfit_of(DEEP, each, share(DEEP)) == "" for each in tables)
    assert all(not each.reads_table for each in ranked_tilings(DEEP, 1, share(DEEP)))
    assert all(not each.reads_table for each in ranked_tilings(DEEP, 64, share(DEEP), clusters=True))


@pytest.mark.parametrize("data_type", ["float16", "bfloat16"])
def test_in_16_bits_it_comes_first_where_it_is_predicted_to_be_clearly_faster(data_type: DataType) -> None:
    deep = replace(DEEP, data_type=data_type)
    shallow = Conv2d(128, 28, 28, 512, 1, 1, data_type=data_type)
    assert ranked_tilings(deep, 1, share(deep), clusters=True)[0].reads_table
    assert not ranked_tilings(shallow, 1, share(shallow), clusters=True)[0].reads_table


@pytest.mark.parametrize("data_type", ["float16", "bfloat16"])
def test_in_16_bits_it_is_tried_with_two_images_and_not_with_four(data_type: DataType) -> None:
    deep = replace(DEEP, data_type=data_type)
    two, four = (ranked_tilings(deep, batch, share(deep), clusters=True) for batch in (2, 4))
    assert any(each.reads_table for each in two)
    assert not any(each.reads_table for each in four)
