"""The chosen tiling: deterministic, within every limit, shared by the checkpoints of a pruning sweep."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from codegen.errors import TilingError
from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, ConvTranspose2d, LayerSpec, Linear
from codegen.ir.tiling import Accumulator, Tiling
from codegen.kernels import canonical, launch_of, lower, stream_count, tiled
from codegen.kernels.geometry import geometry_of
from codegen.kernels.streams import Streams, fits
from codegen.kernels.workload import bank_conflicts
from codegen.model_zoo import TEN_OPERATORS
from codegen.selection.candidates import candidates
from codegen.selection.choose import SHARED_BYTES, choose_parts, choose_tiling, misfit_of, ranked_tilings
from codegen.selection.code_limits import STREAM_BYTES, STREAM_MULTIPLY_ADDS
from codegen.selection.cost_model import predict_microseconds
from codegen.selection.costs.stream import Stream, registers_of
from codegen.selection.feasibility import BODY_RESULTS, BODY_SLOTS, OFFSET_BYTES, SUMS

ROOT = Path(__file__).parents[2]
PAD = (1, 1, 1, 1)
EVERY_KIND: dict[str, LayerSpec] = {
    **TEN_OPERATORS,
    "stride 2": Conv2d(64, 56, 56, 128, 3, 3, stride=(2, 2), padding=PAD),
    "dilation": Conv2d(32, 28, 28, 32, 3, 3, padding=(2, 2, 2, 2), dilation=(2, 2)),
    "residual": Conv2d(64, 28, 28, 64, 3, 3, padding=PAD, epilogue=(AddResidual(), Clip(low=0.0))),
    "1-D": Conv2d(40, 1, 3000, 64, 1, 3, padding=(0, 1, 0, 1)),
    "1x1": Conv2d(256, 14, 14, 64, 1, 1),
    "groups": Conv2d(128, 28, 28, 128, 3, 3, padding=PAD, groups=32),
    "two groups": Conv2d(96, 27, 27, 256, 5, 5, padding=(2, 2, 2, 2), groups=2),
    "depthwise": Conv2d(144, 56, 56, 144, 3, 3, padding=PAD, groups=144),
    "transposed": ConvTranspose2d(64, 32, 32, 32, 2, 2, stride=(2, 2)),
    "transposed, overlapping": ConvTranspose2d(64, 16, 16, 32, 4, 4, stride=(2, 2), padding=PAD),
    "transposed, groups": ConvTranspose2d(16, 14, 14, 16, 3, 3, stride=(2, 2), padding=PAD, groups=16),
    "linear": Linear(512, 1000),
    "linear, few outputs": Linear(1024, 10),
    "float16": Conv2d(64, 28, 28, 64, 3, 3, padding=PAD, data_type="float16"),
    "float16 1x1": Conv2d(96, 14, 14, 96, 1, 1, data_type="float16"),
    "float16 linear": Linear(256, 128, data_type="float16"),
    "bfloat16": Conv2d(64, 28, 28, 64, 3, 3, padding=PAD, data_type="bfloat16"),
}


def spread(spec: LayerSpec, density: float) -> NDArray[np.int64]:
    """[K]: the same share of non-zeros in every output channel."""
    return np.full(spec.output_channels, round(density * spec.weights_count / spec.output_channels))


def multiply_adds(spec: LayerSpec, tiling: Tiling, nonzeros: NDArray[np.int64]) -> NDArray[np.int64]:
    """[K groups]: multiply-adds of a thread."""
    by_stream = np.asarray(Streams.of(geometry_of(spec), tiling).by_stream(nonzeros), dtype=np.int64)
    return by_stream.sum(axis=1) * tiling.rows


def check_limits(spec: LayerSpec, tiling: Tiling) -> None:
    """Asserts the limits that do not depend on the weights."""
    assert 1 <= launch_of(spec, tiling).block[0] <= 1024
    assert launch_of(spec, tiling).shared_bytes <= SHARED_BYTES
    assert fits(geometry_of(canonical(spec)), tiling)
    work = tiled(spec, tiling).workload
    assert work.sums <= SUMS or tiling.group_outputs == 1
    assert registers_of(work) <= 255
    assert work.slots <= BODY_SLOTS
    assert work.results <= BODY_RESULTS
    assert work.largest_offset_bytes < OFFSET_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY_KIND)
@pytest.mark.parametrize("density", [0.0, 0.1, 0.5])
def test_every_kind_of_layer_gets_a_tiling_within_the_limits(name: str, density: float) -> None:
    spec = EVERY_KIND[name]
    nonzeros = spread(spec, density)
    for batch in (1, 64):
        tiling = choose_tiling(spec, batch, nonzeros, code_limit_bytes=10**9)
        check_limits(spec, tiling)
        assert not tiling.reads_table or (batch == 1 and isinstance(spec, Linear))
        if not tiling.reads_table and tiling.group_outputs > 1:
            assert multiply_adds(canonical(spec), tiling, nonzeros).max() <= STREAM_MULTIPLY_ADDS
            work = tiled(spec, tiling).workload
            assert Stream.of(work, nonzeros.sum() / spec.weights_count).code_bytes <= STREAM_BYTES


def test_the_k_groups_of_a_large_layer_are_chosen_to_fill_the_multiprocessors() -> None:
    vgg = Conv2d(512, 28, 28, 512, 3, 3, padding=PAD)  # measured: 730 us in 12 K groups, 922 us in 16
    assert stream_count(vgg, choose_tiling(vgg, 64, spread(vgg, 0.1))) == 12


def test_wide_1x1_layers_run_their_blocks_in_order_place() -> None:
    wide = Conv2d(256, 56, 56, 512, 1, 1, stride=(2, 2))  # measured: 140 us, 185 group after group
    assert choose_tiling(wide, 64, spread(wide, 0.1), clusters=True).order == "place"
    assert choose_tiling(wide, 64, spread(wide, 0.1)).order == "group"  # one kernel, and ptxas would make it


@st.composite
def convolutions(draw: st.DrawFn) -> Conv2d | ConvTranspose2d:
    groups = draw(st.sampled_from([1, 1, 2, 3, 8]))
    return draw(st.sampled_from([Conv2d, ConvTranspose2d]))(
        channels=groups * draw(st.integers(1, 16)),
        height=draw(st.integers(1, 230)),
        width=draw(st.integers(1, 230)),
        output_channels=groups * draw(st.integers(1, 16)),
        kernel_height=draw(st.integers(1, 7)),
        kernel_width=draw(st.integers(1, 7)),
        stride=draw(st.tuples(st.integers(1, 4), st.integers(1, 4))),
        padding=draw(st.tuples(*[st.integers(0, 5)] * 4)),
        dilation=draw(st.sampled_from([(1, 1), (2, 1), (2, 3)])),
        groups=groups,
        data_type=draw(st.sampled_from(["float32", "float16", "bfloat16"])),
    )


layers = st.one_of(
    convolutions().filter(lambda spec: spec.output_height > 0 and spec.output_width > 0),
    st.builds(Linear, st.integers(1, 2000), st.integers(1, 2000)),
)


@settings(max_examples=40)
@given(layers, st.sampled_from([0.02, 0.1, 0.6]), st.sampled_from([1, 7, 64]))
def test_any_layer_gets_a_tiling_that_covers_it_and_parts_that_cover_its_streams(
    spec: LayerSpec, density: float, batch: int
) -> None:
    nonzeros = spread(spec, density)
    tiling = choose_tiling(spec, batch, nonzeros, code_limit_bytes=10**10)
    assert launch_of(spec, tiling).block[0] <= 1024
    assert launch_of(spec, tiling).shared_bytes <= SHARED_BYTES
    streams = stream_count(canonical(spec), tiling)
    covered = Streams.of(geometry_of(canonical(spec)), tiling).by_stream(np.ones(spec.output_channels, dtype=np.int64))
    assert int(covered.sum()) == spec.output_channels
    parts = choose_parts(spec, tiling, nonzeros)
    assert [group for part in parts for group in range(part.first, part.end)] == list(range(streams))
    assert all(part.first < part.end for part in parts)


def test_a_tiling_that_was_measured_may_have_more_shared_memory_than_one_that_is_chosen() -> None:
    spec = Conv2d(64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
    nonzeros = spread(spec, 0.1)
    measured = Tiling("conv2d", 56, 4, 1, group_outputs=8, chunk_channels=8, stages=4)
    assert launch_of(spec, measured).shared_bytes > SHARED_BYTES
    assert misfit_of(spec, measured, nonzeros) == ""
    assert measured not in ranked_tilings(spec, 1, nonzeros)
    assert "shared memory" in misfit_of(spec, replace(measured, stages=22), nonzeros)


def test_a_tiling_that_was_measured_may_need_a_few_registers_more_by_estimate() -> None:
    spec = Conv2d(128, 56, 56, 256, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    nonzeros = spread(spec, 0.1)
    measured = Tiling(
        "conv2d", 56, 14, 1, 43, chunk_channels=4, stages=2, accumulate="float16", images=2, order="place"
    )
    assert misfit_of(spec, measured, nonzeros) == ""
    assert measured not in ranked_tilings(spec, 64, nonzeros)
    assert "registers" in misfit_of(spec, replace(measured, group_outputs=52), nonzeros)


CHOICES = """
from tests.unit.test_choice import EVERY_KIND, choose_parts, choose_tiling, spread
for name in ("resnet-conv1", "1x1", "groups", "transposed"):
    spec = EVERY_KIND[name]
    tiling = choose_tiling(spec, 64, spread(spec, 0.1))
    print(tiling, choose_parts(spec, tiling, spread(spec, 0.1)))
"""


def test_a_layer_gets_the_same_tiling_and_parts_in_every_process() -> None:
    """Each orders its sets in its own way, and has chosen nothing before."""
    said = [
        subprocess.run(
            [sys.executable, "-c", CHOICES],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0].count("Tiling(") == 4
    assert said[0] == said[1]


@pytest.mark.parametrize("name", ["vgg-conv3", "depthwise", "transposed", "linear", "float16"])
def test_a_few_weights_more_or_less_share_a_template(name: str) -> None:
    spec = EVERY_KIND[name]
    assert len({choose_tiling(spec, 64, spread(spec, density)) for density in (0.096, 0.1, 0.104)}) == 1


@pytest.mark.parametrize("name", ["alexnet-conv2", "1x1", "linear"])
def test_near_batches_share_a_template(name: str) -> None:
    spec = EVERY_KIND[name]
    assert len({choose_tiling(spec, batch, spread(spec, 0.1)) for batch in (48, 64, 90)}) == 1


def test_maps_of_one_size_and_other_shapes_share_the_tiling_of_a_1x1_layer() -> None:
    tall, wide = Conv2d(64, 28, 7, 32, 1, 1), Conv2d(64, 14, 14, 32, 1, 1)
    assert choose_tiling(tall, 64, spread(tall, 0.1)) == choose_tiling(wide, 64, spread(wide, 0.1))


def test_weights_in_few_output_channels_get_smaller_groups_than_spread_ones() -> None:
    spec = Conv2d(512, 14, 14, 256, 3, 3, padding=PAD)
    uneven = np.zeros(spec.output_channels, dtype=np.int64)
    uneven[:26] = spec.weights_count // 10 // 26
    tiling = choose_tiling(spec, 64, uneven, code_limit_bytes=10**9)
    assert multiply_adds(spec, tiling, uneven).max() <= STREAM_MULTIPLY_ADDS
    even = choose_tiling(spec, 64, spread(spec, 0.1), code_limit_bytes=10**9)
    assert multiply_adds(spec, even, uneven).max() > STREAM_MULTIPLY_ADDS
    assert tiling.group_outputs < even.group_outputs


@pytest.mark.parametrize("accumulate", ["float32", "float16"])
def test_only_float16_layers_may_be_added_up_in_float16(accumulate: Accumulator) -> None:
    for name, expected in (("float16", accumulate), ("alexnet-conv2", "float32"), ("bfloat16", "float32")):
        spec = EVERY_KIND[name]
        assert choose_tiling(spec, 64, spread(spec, 1.0), accumulate=accumulate).accumulate == expected


def test_the_full_form_has_the_tiling_of_the_rolled_one() -> None:
    spec = TEN_OPERATORS["lenet-conv1"]
    rolled = choose_tiling(spec, 64, spread(spec, 0.1))
    assert choose_tiling(spec, 64, spread(spec, 0.1), form="full") == replace(rolled, form="full")


@pytest.mark.parametrize("name", ["groups", "depthwise", "transposed", "linear", "float16", "bfloat16"])
def test_the_full_form_of_any_but_an_ordinary_convolution_is_refused(name: str) -> None:
    spec = EVERY_KIND[name]
    with pytest.raises(TilingError, match=r"the full form is .* leave out --template full"):
        choose_tiling(spec, 64, spread(spec, 0.1), form="full")


def test_a_filter_too_large_for_shared_memory_is_an_error_that_says_so() -> None:
    spec = Conv2d(1, 400, 400, 1, 200, 200)
    with pytest.raises(TilingError, match=r"its filter is too large: .* 48 KiB of shared memory"):
        choose_tiling(spec, 1, spread(spec, 0.1))


def test_too_much_code_is_an_error_that_names_the_limit_that_suffices() -> None:
    spec = Conv2d(1024, 4, 4, 1024, 3, 3, padding=PAD)
    message = (
        r"its code would be (\d+) MB, \d+ bytes a non-zero weight, and the limit is 16 MB: "
        r"raise it with --max-code-size \1MB, or prune the layer further"
    )
    with pytest.raises(TilingError, match=message) as refused:
        choose_tiling(spec, 64, spread(spec, 0.5))
    megabytes = int(str(refused.value).split(" MB")[0].split()[-1])
    assert megabytes >= 16 * spec.weights_count // 2 // 10**6
    with pytest.raises(TilingError, match=r"the limit is 500 KB"):
        choose_tiling(spec, 64, spread(spec, 0.5), code_limit_bytes=500_000)
    check_limits(spec, choose_tiling(spec, 64, spread(spec, 0.5), code_limit_bytes=megabytes * 10**6))


def test_an_output_channel_with_more_terms_than_a_stream_should_have_is_compiled() -> None:
    spec = Conv2d(2500, 4, 4, 2, 3, 3, padding=PAD)
    tiling = choose_tiling(spec, 64, spread(spec, 1.0))
    assert tiling.group_outputs == 1
    assert multiply_adds(spec, tiling, spread(spec, 1.0)).max() > STREAM_MULTIPLY_ADDS


def test_offsets_of_a_huge_image_fit_an_address() -> None:
    spec = Conv2d(8, 11_000, 11_000, 4, 3, 3, padding=PAD)
    tiling = choose_tiling(spec, 1, spread(spec, 0.1))
    assert 4 * tiling.chunk_channels * 11_000**2 < 2**31


@pytest.mark.parametrize("name", EVERY_KIND)
def test_candidates_differ(name: str) -> None:
    everything = list(candidates(lower(EVERY_KIND[name])))
    assert len(set(everything)) == len(everything) > 0


@pytest.mark.parametrize("name", ["resnet-conv1", "linear", "transposed"])
def test_more_images_never_take_less_time(name: str) -> None:
    spec = EVERY_KIND[name]
    tiling = choose_tiling(spec, 64, spread(spec, 0.1))
    times = [predict_microseconds(tiled(spec, tiling), batch, 0.1) for batch in (1, 4, 16, 64, 256)]
    assert times == sorted(times)


@pytest.mark.parametrize("clusters", [True, False])
@pytest.mark.parametrize(
    "spec", [Linear(384, 1536), Linear(1536, 384), Linear(768, 3072, data_type="float16")], ids=str
)
def test_a_slightly_sparser_linear_layer_does_not_get_a_much_slower_tiling(spec: Linear, clusters: bool) -> None:
    times = []
    for sparsity in range(80, 97):
        density = 1 - sparsity / 100
        tiling = choose_tiling(spec, 4096, spread(spec, density), clusters=clusters)
        times.append(predict_microseconds(tiled(spec, tiling), 4096, density))
    assert max(later / earlier for earlier, later in pairwise(times)) < 1.15


def test_lanes_an_even_distance_apart_conflict() -> None:
    assert bank_conflicts(range(32)) == 1
    assert bank_conflicts([5] * 32) == 1  # one word for all is one access
    assert bank_conflicts(range(0, 64, 2)) == 2
    assert bank_conflicts(range(0, 32 * 32, 32)) == 32
