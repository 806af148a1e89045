"""Dot products of weights and input elements, in float64, for a region of a layer's output.

All operators are one loop over the taps of the filter. At each tap, the outputs and the input elements that it connects
are two strided slices, in convolutions and transposed convolutions alike. A Linear is a convolution of 1x1 images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import to_float32
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, DataType, LayerSpec, Linear, is_gated
from codegen.kernels.output_region import Region

Float64Array = NDArray[np.float64]


@dataclass(frozen=True)
class _TapOverlap:
    """One tap of the filter along one axis, and the outputs and input elements that it connects."""

    position: int
    outputs: slice
    inputs: slice


@dataclass(frozen=True)
class _ChannelGroup:
    """Output channels and the input channels that they read: `groups` whole groups, or a part of one group."""

    groups: int
    output_channels: slice
    channels: slice


@dataclass(frozen=True, eq=False)
class DotProducts:
    """Operands of a region's outputs: the weights of its output channels and the input elements that they read."""

    kernel: Float64Array
    """[R, S, K, C / groups]"""
    bias: Float64Array
    """[K]"""
    patch: Float64Array
    """[N, C, H, W], with the input channels of these output channels only."""
    shape: tuple[int, int, int, int]
    """N, K, H', W' of the region."""
    rows: list[_TapOverlap]
    columns: list[_TapOverlap]
    grouped: list[_ChannelGroup]

    @property
    def nonzeros(self) -> NDArray[np.int64]:
        """Non-zero weights of each output channel, [K, 1, 1]."""
        counts: NDArray[np.int64] = np.count_nonzero(self.kernel, axis=(0, 1, 3))[:, None, None]
        return counts

    def values(self) -> Float64Array:
        """The sums with bias, [N, K, H', W']."""
        return self._sums(self.kernel, self.patch) + self.bias[:, None, None]

    def magnitudes(self) -> Float64Array:
        """The sums of |weight| |input element| without bias, [N, K, H', W']."""
        return self._sums(np.abs(self.kernel), np.abs(self.patch))

    def _sums(self, kernel: Float64Array, patch: Float64Array) -> Float64Array:
        """The sums, in which an infinity or NaN of the patch reaches outputs through non-zero weights only."""
        finite = np.isfinite(patch)
        if finite.all():
            return self._sums_of_finite(kernel, patch)
        sums = self._sums_of_finite(kernel, np.where(finite, patch, 0))
        positive, negative = (kernel > 0).astype(np.float64), (kernel < 0).astype(np.float64)
        up, down, nan = (each.astype(np.float64) for each in (patch == np.inf, patch == -np.inf, np.isnan(patch)))
        to_up = self._sums_of_finite(positive, up) + self._sums_of_finite(negative, down) > 0
        to_down = self._sums_of_finite(positive, down) + self._sums_of_finite(negative, up) > 0
        to_nan = self._sums_of_finite(positive + negative, nan) > 0
        sums[to_up] = np.inf
        sums[to_down] = -np.inf
        sums[to_nan | (to_up & to_down)] = np.nan
        return sums

    def _sums_of_finite(self, kernel: Float64Array, patch: Float64Array) -> Float64Array:
        """The sums for a finite patch, tap by tap, without the memory of an im2col."""
        sums = np.zeros(self.shape)
        images = len(patch)
        for part in self.grouped:
            filters, inputs = kernel[:, :, part.output_channels], patch[:, part.channels]
            for row in self.rows:
                for column in self.columns:
                    factor = filters[row.position, column.position].reshape(part.groups, -1, kernel.shape[3])
                    met = inputs[:, :, row.inputs, column.inputs]
                    height, width = met.shape[2:]
                    product = factor @ met.reshape(images, part.groups, kernel.shape[3], height * width)
                    total = sums[:, part.output_channels, row.outputs, column.outputs]
                    total += product.reshape(total.shape)
        return sums


def dot_products(spec: LayerSpec, weights: Weights, x: NDArray[Any], region: Region) -> DotProducts:
    """The operands of a region, selected from an input [N, C, H, W] or [rows, inputs] and the weights.

    Raises ValueError if the input does not have the spec's shape, a slice has a step, or the layer is gated.
    """
    if is_gated(spec):
        raise ValueError("a gated layer: multiply its input with `gated_input`, and ask for the `plain` layer")
    if x.ndim != len(spec.input_shape) + 1 or x.shape[1:] != spec.input_shape:
        raise ValueError(f"an input of the shape {list(x.shape)} for a layer of {['N', *spec.input_shape]}")
    if isinstance(spec, Linear):
        spec, x = Conv2d(spec.inputs, 1, 1, spec.outputs, 1, 1, data_type=spec.data_type), x[:, :, None, None]
    images, outputs = _range(region.images, len(x)), _range(region.outputs, spec.output_channels)
    output_rows, output_columns = _range(region.rows, spec.output_height), _range(region.columns, spec.output_width)
    rows, inputs_y = _tap_overlaps(spec, 0, output_rows)
    columns, inputs_x = _tap_overlaps(spec, 1, output_columns)
    grouped = list(_groups(spec, outputs))
    first_channel = min((part.channels.start for part in grouped), default=0)
    last_channel = max((part.channels.stop for part in grouped), default=0)
    kernel = weights.kernel.reshape(spec.weights_shape)[outputs.start : outputs.stop]
    patch = to_float64(x[images.start : images.stop, first_channel:last_channel, inputs_y, inputs_x], spec.data_type)
    if weights.bounds is not None:
        low, high = weights.bounds[first_channel:last_channel].T.astype(np.float64)[:, :, None, None]
        patch = np.minimum(np.maximum(patch, low), high)  # both keep NaN
    return DotProducts(
        kernel=np.ascontiguousarray(kernel.transpose(2, 3, 0, 1), np.float64),
        bias=weights.bias[outputs.start : outputs.stop].astype(np.float64),
        patch=patch,
        shape=(len(images), len(outputs), len(output_rows), len(output_columns)),
        rows=rows,
        columns=columns,
        grouped=[
            _ChannelGroup(
                part.groups, _shift(part.output_channels, outputs.start), _shift(part.channels, first_channel)
            )
            for part in grouped
        ],
    )


def gated_input(spec: LayerSpec, x: NDArray[Any], gate: NDArray[Any]) -> NDArray[Any]:
    """An input [N, C, H, W] times the gates [N, C] or [N, C, 1, 1], rounded as a gated layer's kernel rounds it.

    The result is float16 for float16 layers, else float32.
    """
    gates = to_float64(gate, spec.data_type).reshape(*x.shape[:2], 1, 1)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        product = to_float64(x, spec.data_type) * gates
        return product.astype(np.float16 if spec.data_type == "float16" else np.float32)


def to_float64(values: NDArray[Any], data_type: DataType) -> Float64Array:
    """The values of an array of floats, or of uint16 with the bits of bfloat16, as float64."""
    if np.issubdtype(values.dtype, np.floating):
        return values.astype(np.float64)
    return to_float32(values, data_type).astype(np.float64)


def _range(part: slice, size: int) -> range:
    start, stop, step = part.indices(max(size, 0))
    if step != 1:
        raise ValueError(f"slice with step {step}: give a slice without a step")
    return range(start, max(start, stop))


def _shift(part: slice, origin: int) -> slice:
    return slice(part.start - origin, part.stop - origin, part.step)


def _tap_overlaps(spec: Conv2d | ConvTranspose2d, axis: int, outputs: range) -> tuple[list[_TapOverlap], slice]:
    """The overlaps of each tap for a range of outputs along one axis, and the slice of input elements that they read.

    Output indices are relative to the range, input indices to the slice. Taps on padding only have no overlap.
    """
    inputs = range(spec.input_shape[axis + 1])
    stride, padding, dilation = spec.stride[axis], spec.padding[axis], spec.dilation[axis]
    overlaps = []
    for position in range(spec.weights_shape[axis + 2]):
        offset = position * dilation - padding
        if isinstance(spec, ConvTranspose2d):
            from_inputs, from_outputs = _strided(inputs, outputs, stride, offset)
        else:
            from_outputs, from_inputs = _strided(outputs, inputs, stride, offset)
        if from_inputs.stop > from_inputs.start:
            overlaps.append(_TapOverlap(position, _shift(from_outputs, outputs.start), from_inputs))
    first = min((overlap.inputs.start for overlap in overlaps), default=0)
    last = max((overlap.inputs.stop for overlap in overlaps), default=0)
    shifted = [_TapOverlap(overlap.position, overlap.outputs, _shift(overlap.inputs, first)) for overlap in overlaps]
    return shifted, slice(first, last)


def _strided(coarse: range, fine: range, stride: int, offset: int) -> tuple[slice, slice]:
    """The i of `coarse` with i * stride + offset in `fine`, and those positions in `fine`; both may be empty."""
    first = max(coarse.start, -((offset - fine.start) // stride))
    end = min(coarse.stop, -((offset - fine.stop) // stride))
    if end <= first:
        return slice(0, 0), slice(0, 0)
    return slice(first, end), slice(first * stride + offset, (end - 1) * stride + offset + 1, stride)


def _groups(spec: Conv2d | ConvTranspose2d, outputs: range) -> Iterator[_ChannelGroup]:
    """Splits output channels into parts of whole groups or within one group: at most three parts."""
    outputs_per_group, channels_per_group = spec.output_channels // spec.groups, spec.channels // spec.groups
    first = outputs.start
    while first < outputs.stop:
        group, within = divmod(first, outputs_per_group)
        groups = 1 if within else max(1, (outputs.stop - first) // outputs_per_group)
        end = min(outputs.stop, (group + groups) * outputs_per_group)
        channels = slice(group * channels_per_group, (group + groups) * channels_per_group)
        yield _ChannelGroup(groups, slice(first, end), channels)
        first = end
