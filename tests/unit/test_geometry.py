"""Layers as their kernels compute them: phases of transposed convolutions, and streams of kernels and channels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels.geometry import canonical, geometry_of, phase_weights
from codegen.kernels.streams import Streams, fits
from codegen.verification.reference import layer_output


def with_bias_of_zero(kernel: NDArray[np.float32]) -> Weights:
    return Weights(kernel, np.zeros(len(kernel), dtype=np.float32))


def by_definition(spec: ConvTranspose2d, kernel: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float64]:
    """[K, H', W']: every input element times a kernel, added up `stride` outputs apart, one at a time."""
    top, left, _, _ = spec.padding
    output = np.zeros(spec.output_shape)
    kernels, channels = spec.output_channels // spec.groups, spec.channels // spec.groups
    for k, c, i, j, r, s in np.ndindex(
        spec.output_channels, channels, spec.height, spec.width, spec.kernel_height, spec.kernel_width
    ):
        row = i * spec.stride[0] + r * spec.dilation[0] - top
        column = j * spec.stride[1] + s * spec.dilation[1] - left
        if 0 <= row < spec.output_height and 0 <= column < spec.output_width:
            output[k, row, column] += float(kernel[k, c, r, s]) * float(x[k // kernels * channels + c, i, j])
    return output


def by_phases(spec: ConvTranspose2d, kernel: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float64]:
    """[K, H', W']: every phase as an ordinary convolution of stride 1, its outputs put where they belong."""
    geometry = geometry_of(spec)
    parts = phase_weights(spec, with_bias_of_zero(kernel)).astype(np.float64)
    assert parts.shape[1:] == (
        geometry.phase_count,
        geometry.group_channels,
        geometry.kernel_height,
        geometry.kernel_width,
    )
    around = 50  # more than any window reaches beyond the input
    padded = np.pad(x.astype(np.float64), ((0, 0), (around, around), (around, around)))
    output = np.full(spec.output_shape, np.nan)
    up_y, up_x = geometry.phases
    for k, phase, y, column in np.ndindex(
        geometry.output_channels, geometry.phase_count, geometry.positions_height, geometry.positions_width
    ):
        row_out = y * up_y + phase // up_x - geometry.crop[0]
        column_out = column * up_x + phase % up_x - geometry.crop[1]
        if 0 <= row_out < spec.output_height and 0 <= column_out < spec.output_width:
            group = k // geometry.group_outputs * geometry.group_channels
            rows = slice(around + y - geometry.pad_top, around + y - geometry.pad_top + geometry.kernel_height)
            first = around + column - geometry.pad_left
            window = padded[group : group + geometry.group_channels, rows, first : first + geometry.kernel_width]
            assert np.isnan(output[k, row_out, column_out])
            output[k, row_out, column_out] = np.sum(parts[k, phase] * window)
    return output


@st.composite
def transposed(draw: st.DrawFn) -> ConvTranspose2d:
    stride = draw(st.tuples(st.integers(1, 4), st.integers(1, 3)))
    groups = draw(st.sampled_from([1, 2]))
    return ConvTranspose2d(
        channels=2 * groups,
        height=draw(st.integers(1, 4)),
        width=draw(st.integers(1, 4)),
        output_channels=groups,
        kernel_height=draw(st.integers(1, 4)),
        kernel_width=draw(st.integers(1, 3)),
        stride=stride,
        padding=draw(st.tuples(*[st.integers(0, 3)] * 4)),
        dilation=draw(st.tuples(st.integers(1, 3), st.integers(1, 2))),
        groups=groups,
        output_padding=(draw(st.integers(0, stride[0] - 1)), draw(st.integers(0, stride[1] - 1))),
    )


@settings(max_examples=60)
@given(transposed().filter(lambda spec: spec.output_height > 0 and spec.output_width > 0))
def test_the_phases_of_a_transposed_convolution_are_its_definition(spec: ConvTranspose2d) -> None:
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal(spec.weights_shape, dtype=np.float32)
    x = rng.standard_normal(spec.input_shape, dtype=np.float32)
    expected = by_definition(spec, kernel, x)
    np.testing.assert_allclose(by_phases(spec, kernel, x), expected, atol=1e-9)
    np.testing.assert_allclose(layer_output(spec, with_bias_of_zero(kernel), x[None])[0], expected, atol=1e-9)


@given(transposed())
def test_the_phases_share_out_the_weights_and_each_has_one_phase(spec: ConvTranspose2d) -> None:
    kernel = np.arange(1, spec.weights_count + 1, dtype=np.float32).reshape(spec.weights_shape)
    parts = phase_weights(spec, with_bias_of_zero(kernel))
    assert sorted(parts[parts != 0].tolist()) == kernel.ravel().tolist()


@pytest.mark.parametrize("spec", [Conv2d(4, 8, 8, 6, 3, 5, groups=2), Linear(7, 5)])
def test_other_layers_have_one_phase_of_all_weights(spec: Any) -> None:
    kernel = np.random.default_rng(0).standard_normal(spec.weights_shape, dtype=np.float32)
    parts = phase_weights(spec, with_bias_of_zero(kernel))
    assert parts.shape[:2] == (spec.output_channels, 1)
    assert np.array_equal(parts.ravel(), kernel.ravel())


@pytest.mark.parametrize(
    ("spec", "pointwise"),
    [
        (Conv2d(4, 5, 6, 7, 1, 1), True),
        (Conv2d(4, 5, 6, 4, 1, 1, groups=4), True),
        (Linear(4, 5), True),
        (Conv2d(4, 5, 6, 7, 1, 2), False),
        (Conv2d(4, 5, 6, 7, 1, 1, stride=(2, 1)), False),
        (Conv2d(4, 5, 6, 7, 1, 1, padding=(1, 0, 0, 0)), False),
        (Conv2d(4, 5, 6, 7, 1, 1, padding=(0, 0, 0, 1)), False),
        (ConvTranspose2d(4, 5, 6, 7, 2, 2, stride=(2, 2)), False),
    ],
)
def test_pointwise_layers_need_one_input_of_a_channel_at_the_place_of_the_output(spec: Any, pointwise: bool) -> None:
    assert geometry_of(spec).is_pointwise == pointwise


def test_rows_of_a_map_are_one_row_for_a_pointwise_convolution_and_for_no_other() -> None:
    spec = Conv2d(4, 5, 6, 7, 1, 1)
    assert canonical(spec) == replace(spec, height=1, width=30)
    assert canonical(canonical(spec)) == canonical(spec)
    for other in (Conv2d(4, 5, 6, 7, 3, 3), Conv2d(4, 5, 6, 7, 1, 1, stride=(2, 2)), Linear(4, 5)):
        assert canonical(other) == other


@st.composite
def divided(draw: st.DrawFn) -> tuple[Conv2d, Tiling]:
    """A convolution, in groups or not, and a tiling that fits it."""
    groups, channels, kernels = draw(st.sampled_from([1, 2, 4, 6])), draw(st.integers(1, 5)), draw(st.integers(1, 7))
    spec = Conv2d(groups * channels, 4, 4, groups * kernels, 2, 2, groups=groups)
    several = draw(st.sampled_from([n for n in range(1, groups + 1) if groups % n == 0]))
    if several > 1:
        return spec, Tiling("conv2d", 4, 4, 1, several * kernels, several * channels, 2)
    return spec, Tiling("conv2d", 4, 4, 1, draw(st.integers(1, kernels)), draw(st.integers(1, channels)), 2)


@given(divided())
def test_first_output_and_by_stream_agree_and_reach_every_output_channel_once(layer: tuple[Conv2d, Tiling]) -> None:
    spec, tiling = layer
    assert fits(geometry_of(spec), tiling)
    streams = Streams.of(geometry_of(spec), tiling)
    numbers = streams.by_stream(np.arange(1, spec.output_channels + 1))
    assert numbers.shape == (streams.count, tiling.group_outputs)
    found = []
    for stream, row in enumerate(numbers.tolist()):
        kernels = [number - 1 for number in row if number]
        assert kernels == list(range(streams.first_output(stream), streams.first_output(stream) + len(kernels)))
        assert row[len(kernels) :] == [0] * (tiling.group_outputs - len(kernels))
        found += kernels
    assert found == list(range(spec.output_channels))


@given(divided())
def test_the_output_channels_of_a_stream_read_the_channels_of_one_span(layer: tuple[Conv2d, Tiling]) -> None:
    spec, tiling = layer
    streams = Streams.of(geometry_of(spec), tiling)
    assert streams.spans * streams.span_channels == spec.channels
    assert streams.spans * streams.span_outputs == spec.output_channels
    assert (
        (streams.chunks - 1) * tiling.chunk_channels < streams.span_channels <= streams.chunks * tiling.chunk_channels
    )
    group_of = np.arange(spec.output_channels) // (spec.output_channels // spec.groups)
    first_channel = group_of * (spec.channels // spec.groups)
    spans = streams.by_stream(first_channel // streams.span_channels + 1)
    assert all(len(set(row) - {0}) == 1 for row in spans.tolist())


def test_streams_keep_what_belongs_to_a_kernel_together() -> None:
    streams = Streams.of(geometry_of(Conv2d(6, 4, 4, 10, 1, 1, groups=2)), Tiling("conv2d", 4, 4, 1, 3, 2, 2))
    values = np.arange(1, 21).reshape(10, 2)
    assert streams.by_stream(values).tolist() == [
        [[1, 2], [3, 4], [5, 6]],
        [[7, 8], [9, 10], [0, 0]],
        [[11, 12], [13, 14], [15, 16]],
        [[17, 18], [19, 20], [0, 0]],
    ]


@pytest.mark.parametrize(
    ("group_outputs", "chunk_channels", "whole"),
    [
        (2, 3, True),
        (4, 3, True),
        (8, 8, True),
        (8, 4, False),
        (6, 6, False),
        (12, 12, False),
        (16, 16, True),
        (2, 5, False),
        (4, 5, False),
    ],
)
def test_a_stream_of_several_groups_has_them_whole_in_one_chunk_and_one_of_less_no_other_groups_channels(
    group_outputs: int, chunk_channels: int, whole: bool
) -> None:
    geometry = geometry_of(Conv2d(16, 4, 4, 16, 3, 3, groups=4))
    assert fits(geometry, Tiling("conv2d", 4, 4, 1, group_outputs, chunk_channels, 2)) == whole
