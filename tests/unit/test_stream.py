"""The instruction stream of a K group: every weight in its place, once, and zeros where there is none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, LayerSpec, Linear
from codegen.ir.tiling import KernelName, Tiling
from codegen.kernels import tiled
from codegen.kernels.geometry import geometry_of, phase_weights
from codegen.kernels.placeholders import FIRST_BIAS, FIRST_WEIGHT, spread_placeholders
from codegen.kernels.streams import Streams
from codegen.kernels.weight_stream import POINTWISE_CHANNELS, bits, full_placeholders, full_values, slots, taps, values


@st.composite
def divided(draw: st.DrawFn) -> tuple[LayerSpec, Tiling]:
    """A layer of any kind and a tiling that fits it."""
    groups, channels, kernels = draw(st.sampled_from([1, 1, 2, 4])), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    extents, strides = st.integers(1, 3), st.tuples(st.integers(1, 3), st.integers(1, 2))
    shape = (groups * channels, 9, 8, groups * kernels, draw(extents), draw(extents))
    if draw(st.booleans()):
        spec: LayerSpec = Conv2d(*shape, stride=draw(strides), dilation=draw(strides), groups=groups)
    else:
        spec = ConvTranspose2d(*shape, stride=draw(strides), dilation=draw(strides), groups=groups)
    if groups == 1 and draw(st.booleans()):
        spec = Linear(channels, kernels)
    several = draw(st.sampled_from([n for n in (1, 2, 4) if groups % n == 0]))
    if several > 1:
        return spec, Tiling("conv2d", 4, 4, draw(extents), several * kernels, several * channels, 2)
    most = channels + 2 if groups == 1 else channels
    kernel: KernelName = "linear" if isinstance(spec, Linear) else "conv2d"
    height = 1 if isinstance(spec, Linear) else 4
    return spec, Tiling(kernel, 4, height, draw(extents), draw(st.integers(1, kernels)), draw(st.integers(1, most)), 2)


def numbered(spec: LayerSpec) -> Weights:
    """Every weight and bias a number of its own, from 1."""
    kernel = np.arange(1, spec.weights_count + 1, dtype=np.float32).reshape(spec.weights_shape)
    return Weights(kernel, np.arange(1, spec.output_channels + 1, dtype=np.float32))


@given(divided())
def test_every_weight_is_multiplied_once_in_each_row_of_a_thread_for_its_own_kernel_and_phase(
    layer: tuple[LayerSpec, Tiling],
) -> None:
    spec, tiling = layer
    geometry, weights = geometry_of(spec), numbered(spec)
    streams, made, of = Streams.of(geometry, tiling), values(tiled(spec, tiling), weights), slots(tiled(spec, tiling))
    assert made.weights.shape == (streams.count, streams.chunks, len(of.sums))
    found = Counter(
        (int(value), stream, *divmod(int(of.sums[slot]), tiled(spec, tiling).sums))
        for (stream, _, slot), value in np.ndenumerate(made.weights)
        if value
    )
    first_outputs = [streams.first_output(stream) for stream in range(streams.count)]
    stream_of = np.searchsorted(first_outputs, np.arange(geometry.output_channels), side="right") - 1
    expected = Counter(
        (int(value), int(stream_of[k]), row, (k - first_outputs[stream_of[k]]) * geometry.phase_count + phase)
        for (k, phase, *_), value in np.ndenumerate(phase_weights(spec, weights))
        if value
        for row in range(tiling.rows)
    )
    assert found == expected


@given(divided())
def test_each_turn_of_the_loop_has_the_channels_of_its_chunk(layer: tuple[LayerSpec, Tiling]) -> None:
    spec, tiling = layer
    geometry = geometry_of(spec)
    streams = Streams.of(geometry, tiling)
    kernel = np.zeros(spec.weights_shape, dtype=np.float32)
    kernel += np.arange(1, geometry.group_channels + 1).reshape(1, -1, *[1] * (kernel.ndim - 2))
    made = values(tiled(spec, tiling), Weights(kernel, np.zeros(spec.output_channels, dtype=np.float32)))
    for chunk in range(streams.chunks):
        numbers = {int(number) - 1 for number in np.unique(made.weights[:, chunk]) if number}
        whole = streams.span_channels > geometry.group_channels
        first = 0 if whole else chunk * tiling.chunk_channels
        end = geometry.group_channels if whole else min(first + tiling.chunk_channels, geometry.group_channels)
        assert numbers == set(range(first, end))


@given(divided())
def test_biases_and_stores_are_those_of_existing_output_channels(layer: tuple[LayerSpec, Tiling]) -> None:
    spec, tiling = layer
    geometry = geometry_of(spec)
    made = values(tiled(spec, tiling), numbered(spec))
    assert made.biases.shape == made.exists.shape
    assert np.array_equal(made.biases != 0, made.exists)
    each = np.repeat(np.arange(1, geometry.output_channels + 1), geometry.phase_count)
    assert made.biases[made.exists].tolist() == each.tolist()


def test_channels_and_output_channels_beyond_the_layers_own_are_zero() -> None:
    spec, tiling = Conv2d(3, 8, 8, 5, 1, 1), Tiling("conv2d", 8, 4, 1, 4, 2, 2)
    made = values(tiled(spec, tiling), numbered(spec))
    # Two streams of four kernels, two chunks of two channels; slots go by channel, then by kernel.
    assert made.weights.tolist() == [
        [[1, 4, 7, 10, 2, 5, 8, 11], [3, 6, 9, 12, 0, 0, 0, 0]],
        [[13, 0, 0, 0, 14, 0, 0, 0], [15, 0, 0, 0, 0, 0, 0, 0]],
    ]
    assert made.biases.tolist() == [[1, 2, 3, 4], [5, 0, 0, 0]]
    assert made.exists.tolist() == [[True] * 4, [True, False, False, False]]


def test_streams_of_several_groups_have_no_slots_for_channels_of_other_groups() -> None:
    spec, tiling = Conv2d(4, 8, 8, 8, 1, 1, groups=4), Tiling("conv2d", 8, 4, 1, 4, 2, 2)
    made = values(tiled(spec, tiling), numbered(spec))
    assert made.weights.tolist() == [[[1, 2, 3, 4]], [[5, 6, 7, 8]]]
    assert slots(tiled(spec, tiling)).sums.tolist() == [0, 1, 2, 3]


@given(divided())
def test_a_tap_is_where_the_rows_that_use_it_meet_their_kernel_rows(layer: tuple[LayerSpec, Tiling]) -> None:
    spec, tiling = layer
    geometry = geometry_of(spec)
    every = [tap for statement in taps(tiled(spec, tiling)) for tap in statement]
    for tap in every:
        assert tap.uses
        row = tap.row * geometry.step[0]  # of the input: a tile may hold only every second row, say
        assert all(row == p * geometry.stride[0] + r * geometry.dilation[0] for p, r in tap.uses)
        assert tap.column == tap.kernel_column * geometry.dilation[1]
    assert len({(tap.channel, tap.row, tap.column) for tap in every}) == len(every)
    uses = Counter((tap.channel, tap.kernel_column, p, r) for tap in every for p, r in tap.uses)
    extents = tiling.chunk_channels, geometry.kernel_width, tiling.rows, geometry.kernel_height
    assert uses == Counter(np.ndindex(*extents))


def test_a_statement_is_a_row_of_a_channel_or_a_few_channels_of_a_pointwise_layer() -> None:
    rows = taps(tiled(Conv2d(8, 8, 8, 4, 3, 5), Tiling("conv2d", 8, 4, 2, 4, 2, 2)))
    assert {len(statement) for statement in rows} == {5}
    assert len(rows) == 2 * 4
    pointwise = taps(tiled(Linear(40, 4), Tiling("linear", 32, 1, 1, 4, 10, 2)))
    assert [len(statement) for statement in pointwise] == [POINTWISE_CHANNELS] * 2 + [10 % POINTWISE_CHANNELS]


def test_immediates_are_float32_or_a_float16_in_both_halves() -> None:
    spec = Conv2d(1, 4, 4, 4, 1, 1)
    numbers = np.array([1.0, -2.0, 0.5, 0.0], dtype=np.float32)
    assert [f"{each:08X}" for each in bits(spec, numbers)] == ["3F800000", "C0000000", "3F000000", "00000000"]
    half = replace(spec, data_type="float16")
    assert [f"{each:08X}" for each in bits(half, numbers)] == ["3C003C00", "C000C000", "38003800", "00000000"]
    brain = replace(spec, data_type="bfloat16")
    assert np.array_equal(bits(brain, numbers), bits(spec, numbers))


def test_placeholders_of_weights_never_meet_those_of_biases_or_each_other() -> None:
    spec = Conv2d(5, 8, 8, 6, 3, 3)
    kernel, bias = full_placeholders(spec)
    assert kernel.shape == spec.weights_shape
    both = np.concatenate([kernel.ravel(), bias])
    assert len(set(both.tolist())) == len(both)
    assert np.array_equal(both[:7], spread_placeholders(7))  # by position alone
    numbers = both.view(np.float32)
    assert ((numbers > 1) & (numbers < 2)).all()
    assert FIRST_BIAS - FIRST_WEIGHT >= 2**23


def test_the_first_placeholders_of_the_full_form_are_these() -> None:
    # Stored templates hold them: another sequence needs another codegen.keys.SCHEMA.
    assert [f"{each:08X}" for each in spread_placeholders(4)] == ["3FCF1B21", "3F9E3642", "3FED5163", "3FBC6C84"]


def test_every_float_between_one_and_two_is_a_placeholder_once() -> None:
    every = np.sort(spread_placeholders(2**23 - 1))
    assert np.array_equal(every, np.arange(FIRST_WEIGHT, FIRST_WEIGHT + 2**23 - 1))
    with pytest.raises(ValueError, match="take the rolled form"):
        spread_placeholders(2**23)


@pytest.mark.parametrize("spec", [Conv2d(3, 4, 5, 3, 2, 1), Conv2d(1, 9, 9, 4, 3, 3, padding=(1, 1, 1, 1))])
def test_the_full_form_maps_every_placeholder_to_its_weight(spec: Conv2d) -> None:
    weights, (kernel, bias) = numbered(spec), full_placeholders(spec)
    found = full_values(spec, weights)
    assert len(found) == spec.weights_count + spec.output_channels
    read = np.vectorize(found.__getitem__, otypes=[np.uint32])
    assert np.array_equal(read(kernel).view(np.float32), weights.kernel)
    assert np.array_equal(read(bias).view(np.float32), weights.bias)
