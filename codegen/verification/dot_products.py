"""The sums of a layer, for a region of its output: every output is a dot product of weights and input elements.

All operators are one loop over the positions of the kernel: at each, the outputs and the input elements that meet are
two strided slices, in a convolution as in a transposed one. A Linear is a convolution of images of one element.
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
class _Meeting:
    """One position of the kernel in one dimension, and the outputs and input elements that meet there."""

    position: int
    outputs: slice
    inputs: slice


@dataclass(frozen=True)
class _Grouped:
    """Kernels, and the channels that they read: `groups` whole groups, or a part of the kernels of one."""

    groups: int
    kernels: slice
    channels: slice


@dataclass(frozen=True, eq=False)
class DotProducts:
    """What the outputs of a region are computed from: its kernels and the input elements that they may read."""

    kernel: Float64Array
    """[R, S, K, C / groups]"""
    bias: Float64Array
    """[K]"""
    patch: Float64Array
    """[N, C, H, W], of the groups of these kernels only."""
    shape: tuple[int, int, int, int]
    """N, K, H', W' of the region."""
    rows: list[_Meeting]
    columns: list[_Meeting]
    grouped: list[_Grouped]

    @property
    def nonzeros(self) -> NDArray[np.int64]:
        """[K, 1, 1]: of every kernel."""
        counts: NDArray[np.int64] = np.count_nonzero(self.kernel, axis=(0, 1, 3))[:, None, None]
        return counts

    def values(self) -> Float64Array:
        """[N, K, H', W']: the sums, bias included."""
        return self._sums(self.kernel, self.patch) + self.bias[:, None, None]

    def magnitudes(self) -> Float64Array:
        """[N, K, H', W']: the sums of |weight| |input element|, without the bias."""
        return self._sums(np.abs(self.kernel), np.abs(self.patch))

    def _sums(self, kernel: Float64Array, patch: Float64Array) -> Float64Array:
        """An infinity or NaN of the patch reaches an output through non-zero weights only."""
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
        """One position of the kernel at a time: memory of a few outputs, not of an im2col."""
        sums = np.zeros(self.shape)
        images = len(patch)
        for part in self.grouped:
            kernels, inputs = kernel[:, :, part.kernels], patch[:, part.channels]
            for row in self.rows:
                for column in self.columns:
                    factor = kernels[row.position, column.position].reshape(part.groups, -1, kernel.shape[3])
                    met = inputs[:, :, row.inputs, column.inputs]
                    height, width = met.shape[2:]
                    product = factor @ met.reshape(images, part.groups, kernel.shape[3], height * width)
                    total = sums[:, part.kernels, row.outputs, column.outputs]
                    total += product.reshape(total.shape)
        return sums


def dot_products(spec: LayerSpec, weights: Weights, x: NDArray[Any], region: Region) -> DotProducts:
    """Selects what a region needs of an input [N, C, H, W], or [rows, inputs], and of the weights.

    Raises ValueError if the input does not have the spec's shape, a slice has a step, or the layer is gated.
    """
    if is_gated(spec):
        raise ValueError("a gated layer: multiply its input with `gated_input`, and ask for the `plain` layer")
    if x.ndim != len(spec.input_shape) + 1 or x.shape[1:] != spec.input_shape:
        raise ValueError(f"an input of the shape {list(x.shape)} for a layer of {['N', *spec.input_shape]}")
    if isinstance(spec, Linear):
        spec, x = Conv2d(spec.inputs, 1, 1, spec.outputs, 1, 1, data_type=spec.data_type), x[:, :, None, None]
    images, kernels = _range(region.images, len(x)), _range(region.kernels, spec.output_channels)
    output_rows, output_columns = _range(region.rows, spec.output_height), _range(region.columns, spec.output_width)
    rows, inputs_y = _meetings(spec, 0, output_rows)
    columns, inputs_x = _meetings(spec, 1, output_columns)
    grouped = list(_groups(spec, kernels))
    first_channel = min((part.channels.start for part in grouped), default=0)
    last_channel = max((part.channels.stop for part in grouped), default=0)
    kernel = weights.kernel.reshape(spec.weights_shape)[kernels.start : kernels.stop]
    patch = to_float64(x[images.start : images.stop, first_channel:last_channel, inputs_y, inputs_x], spec.data_type)
    if weights.bounds is not None:
        low, high = weights.bounds[first_channel:last_channel].T.astype(np.float64)[:, :, None, None]
        patch = np.minimum(np.maximum(patch, low), high)  # which leave a NaN
    return DotProducts(
        kernel=np.ascontiguousarray(kernel.transpose(2, 3, 0, 1), np.float64),
        bias=weights.bias[kernels.start : kernels.stop].astype(np.float64),
        patch=patch,
        shape=(len(images), len(kernels), len(output_rows), len(output_columns)),
        rows=rows,
        columns=columns,
        grouped=[
            _Grouped(part.groups, _shift(part.kernels, kernels.start), _shift(part.channels, first_channel))
            for part in grouped
        ],
    )


def gated_input(spec: LayerSpec, x: NDArray[Any], gate: NDArray[Any]) -> NDArray[Any]:
    """An input [N, C, H, W] times the gates [N, C] or [N, C, 1, 1], as a gated layer's kernel multiplies them.

    Of float16 layers an array of float16, else of float32.
    """
    gates = to_float64(gate, spec.data_type).reshape(*x.shape[:2], 1, 1)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        product = to_float64(x, spec.data_type) * gates
        return product.astype(np.float16 if spec.data_type == "float16" else np.float32)


def to_float64(values: NDArray[Any], data_type: DataType) -> Float64Array:
    """The values of an array of floats of any width, or of the bits of bfloat16."""
    if np.issubdtype(values.dtype, np.floating):
        return values.astype(np.float64)
    return to_float32(values, data_type).astype(np.float64)


def _range(part: slice, size: int) -> range:
    start, stop, step = part.indices(max(size, 0))
    if step != 1:
        raise ValueError(f"a part of the output with step {step}: give a slice without a step")
    return range(start, max(start, stop))


def _shift(part: slice, origin: int) -> slice:
    return slice(part.start - origin, part.stop - origin, part.step)


def _meetings(spec: Conv2d | ConvTranspose2d, axis: int, outputs: range) -> tuple[list[_Meeting], slice]:
    """The meetings of a part of one dimension of the output, and the input elements from the first to the last met.

    Outputs count from the beginning of the part, inputs from the first met. Padding meets nothing.
    """
    inputs = range(spec.input_shape[axis + 1])
    stride, padding, dilation = spec.stride[axis], spec.padding[axis], spec.dilation[axis]
    meetings = []
    for position in range(spec.weights_shape[axis + 2]):
        offset = position * dilation - padding
        if isinstance(spec, ConvTranspose2d):
            from_inputs, from_outputs = _strided(inputs, outputs, stride, offset)
        else:
            from_outputs, from_inputs = _strided(outputs, inputs, stride, offset)
        if from_inputs.stop > from_inputs.start:
            meetings.append(_Meeting(position, _shift(from_outputs, outputs.start), from_inputs))
    first = min((meeting.inputs.start for meeting in meetings), default=0)
    last = max((meeting.inputs.stop for meeting in meetings), default=0)
    met = [_Meeting(meeting.position, meeting.outputs, _shift(meeting.inputs, first)) for meeting in meetings]
    return met, slice(first, last)


def _strided(coarse: range, fine: range, stride: int, offset: int) -> tuple[slice, slice]:
    """All i of `coarse` with i * stride + offset in `fine`, and these places there; both empty if there are none."""
    first = max(coarse.start, -((offset - fine.start) // stride))
    end = min(coarse.stop, -((offset - fine.stop) // stride))
    if end <= first:
        return slice(0, 0), slice(0, 0)
    return slice(first, end), slice(first * stride + offset, (end - 1) * stride + offset + 1, stride)


def _groups(spec: Conv2d | ConvTranspose2d, kernels: range) -> Iterator[_Grouped]:
    """Divides kernels so that each part is of whole groups or within one: at most three parts."""
    kernels_of_group, channels_of_group = spec.output_channels // spec.groups, spec.channels // spec.groups
    first = kernels.start
    while first < kernels.stop:
        group, within = divmod(first, kernels_of_group)
        groups = 1 if within else max(1, (kernels.stop - first) // kernels_of_group)
        end = min(kernels.stop, (group + groups) * kernels_of_group)
        channels = slice(group * channels_of_group, (group + groups) * channels_of_group)
        yield _Grouped(groups, slice(first, end), channels)
        first = end
