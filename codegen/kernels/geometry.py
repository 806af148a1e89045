"""Geometry: a layer as its kernels compute it, a convolution over a grid of positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import assert_never

import numpy as np

from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.epilogue import POOL_STRIDE
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, LayerSpec, Linear, MaxPool, Pair, is_pooled, prepares_inputs

LEAST_PATCH_ROWS = 4
"""Least rows of a filter whose rows become channels: with fewer, chunks of whole channels take fewer copies."""


@dataclass(frozen=True)
class Phases:
    """One dimension of a transposed convolution as one of stride 1.

    Output o gets input i through tap r where o + padding = stride * i + dilation * r: all outputs with the same
    (o + padding) // stride are one position, (o + padding) % stride is the phase.
    """

    extent: int
    """Most taps of a phase."""
    padding: int
    """Padding before the input; negative if the first position needs no earlier input than a later one."""
    positions: int
    crop: int

    @staticmethod
    def of(stride: int, dilation: int, taps: int, padding: int, outputs: int) -> Phases:
        extent = (taps - 1) * dilation // stride + 1
        first, last = padding // stride, (outputs - 1 + padding) // stride
        return Phases(extent, extent - 1 - first, last - first + 1, padding % stride)


@dataclass(frozen=True)
class Geometry:
    """A convolution over a grid of positions; each position is `phases` outputs of every output channel.

    An ordinary convolution has one phase. A transposed one with stride s is a convolution of stride 1 that computes
    s x s outputs at each position, each with its own part of the filter (Shi et al. 2016, arXiv 1609.07009). A linear
    layer is a 1x1 convolution whose positions are the rows of the batch. Where a filter moves down by its own height,
    as that of a patch embedding does, each of its rows is a channel, so that a block has few of them at a time.
    """

    channels: int
    output_channels: int
    groups: int = 1
    height: int = 1
    width: int = 1
    kernel_height: int = 1
    kernel_width: int = 1
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    pad_top: int = 0
    pad_left: int = 0
    positions_height: int = 1
    positions_width: int = 1
    phases: Pair = (1, 1)
    """Down and across."""
    crop: Pair = (0, 0)
    """Outputs of the first position that lie before the first output."""
    patch_rows: int = 1
    """Rows of the layer's filter, each of which is a channel here, if no two positions share an input row; else 1."""
    rows_left: int = 0
    """Input rows of a channel below those of the last patch."""
    is_linear: bool = False
    """Whether the positions are the rows of a linear layer's batch."""
    overlap: int = 0
    """Positions that neighbouring tiles share, down and across, where windows of a pool overlap."""
    neighbours: int = 1
    """Adjacent columns of the map that are one column here: a word of float16."""

    @cached_property
    def channel_step(self) -> int:
        """Elements from a channel to the next: of the layer, or of the rows of a patch."""
        return (1 if self.patch_rows > 1 else self.height) * self.width

    @cached_property
    def row_step(self) -> int:
        """Elements from a row of a channel to the next."""
        return self.patch_rows * self.width

    @cached_property
    def channel_jump(self) -> int:
        """Elements from where the next channel would be after the last row of a patch to where it is."""
        return ((self.height - 1) * self.patch_rows + self.rows_left) * self.width if self.patch_rows > 1 else 0

    @cached_property
    def image_elements(self) -> int:
        return self.channels // self.patch_rows * (self.height * self.patch_rows + self.rows_left) * self.width

    @cached_property
    def has_patches_apart(self) -> bool:
        """Whether no two positions share an input element."""
        across = (self.stride[1], self.dilation[1], self.pad_left)
        return self.patch_rows > 1 and across == (self.kernel_width, 1, 0)

    @cached_property
    def is_pointwise(self) -> bool:
        """Whether each output needs one input of a channel, that at its own position."""
        return (self.kernel_height, self.kernel_width, self.stride, self.phases) == (1, 1, (1, 1), (1, 1)) and (
            (self.pad_top, self.pad_left, self.positions_height, self.positions_width)
            == (0, 0, self.height, self.width)
        )

    @cached_property
    def step(self) -> Pair:
        """Input rows and columns from one of a tile to the next: a filter of one row or column skips unread ones."""
        return (
            self.stride[0] if self.kernel_height == 1 else 1,
            self.stride[1] if self.kernel_width == 1 else 1,
        )

    @cached_property
    def tile_stride(self) -> Pair:
        """Rows and columns of a tile from one position to the next."""
        return self.stride[0] // self.step[0], self.stride[1] // self.step[1]

    def step_of(self, positions: int) -> int:
        """Positions from a tile of `positions` to the next, in one direction."""
        return (positions - self.overlap) // POOL_STRIDE * POOL_STRIDE if self.overlap else positions

    @cached_property
    def phase_count(self) -> int:
        return self.phases[0] * self.phases[1]

    @cached_property
    def taps(self) -> int:
        """Weights of an output channel for one channel of its input."""
        return self.kernel_height * self.kernel_width

    @cached_property
    def group_channels(self) -> int:
        return self.channels // self.groups

    @cached_property
    def group_outputs(self) -> int:
        return self.output_channels // self.groups


def canonical(spec: LayerSpec) -> LayerSpec:
    """The spec that kernels are made for: the map of a pointwise convolution becomes one row."""
    if isinstance(spec, Conv2d) and not is_pooled(spec) and spec.height > 1 and geometry_of(spec).is_pointwise:
        return replace(spec, height=1, width=spec.height * spec.width)
    return spec


@lru_cache(maxsize=256)
def geometry_of(spec: LayerSpec) -> Geometry:
    """The geometry of a layer."""
    match spec:
        case Linear():
            return Geometry(spec.inputs, spec.outputs, is_linear=True)
        case Conv2d() if _has_patch_rows(spec):
            return Geometry(
                spec.channels * spec.kernel_height,
                spec.output_channels,
                height=spec.map_height,
                width=spec.width,
                kernel_width=spec.kernel_width,
                stride=(1, spec.stride[1]),
                dilation=(1, spec.dilation[1]),
                pad_left=spec.padding[1],
                positions_height=spec.map_height,
                positions_width=spec.map_width,
                patch_rows=spec.kernel_height,
                rows_left=spec.height % spec.kernel_height,
            )
        case Conv2d():
            geometry = Geometry(
                spec.channels,
                spec.output_channels,
                spec.groups,
                spec.height,
                spec.width,
                spec.kernel_height,
                spec.kernel_width,
                spec.stride,
                spec.dilation,
                spec.padding[0],
                spec.padding[1],
                spec.map_height,
                spec.map_width,
            )
            if spec.pool and spec.pool.window > POOL_STRIDE:
                return _with_windows(geometry, spec, spec.pool)
            return _in_words(geometry) if _has_words(spec, geometry) else geometry
        case ConvTranspose2d():
            down = Phases.of(spec.stride[0], spec.dilation[0], spec.kernel_height, spec.padding[0], spec.output_height)
            across = Phases.of(spec.stride[1], spec.dilation[1], spec.kernel_width, spec.padding[1], spec.output_width)
            return Geometry(
                spec.channels,
                spec.output_channels,
                spec.groups,
                spec.height,
                spec.width,
                down.extent,
                across.extent,
                pad_top=down.padding,
                pad_left=across.padding,
                positions_height=down.positions,
                positions_width=across.positions,
                phases=spec.stride,
                crop=(down.crop, across.crop),
            )
        case _:
            assert_never(spec)


def _with_windows(geometry: Geometry, spec: Conv2d, pool: MaxPool) -> Geometry:
    """The positions of all windows, from the first one on, those beside the map too: tiles begin where windows do."""
    top, left = pool.padding[:2]
    return replace(
        geometry,
        pad_top=geometry.pad_top + top * spec.stride[0],
        pad_left=geometry.pad_left + left * spec.stride[1],
        positions_height=(spec.output_height - 1) * POOL_STRIDE + pool.window,
        positions_width=(spec.output_width - 1) * POOL_STRIDE + pool.window,
        overlap=pool.window - POOL_STRIDE,
    )


def _has_words(spec: Conv2d, geometry: Geometry) -> bool:
    """Whether two neighbouring columns of float16 are what one thread reads and writes, as they lie in memory."""
    plain = spec.data_type == "float16" and not prepares_inputs(spec) and not is_pooled(spec)
    return plain and geometry.is_pointwise and geometry.height == 1 and geometry.width % 2 == 0


def _in_words(geometry: Geometry) -> Geometry:
    width = geometry.width // 2
    return replace(geometry, width=width, positions_width=width, neighbours=2)


def _has_patch_rows(spec: Conv2d) -> bool:
    down = (spec.stride[0], spec.dilation[0], spec.padding[0], spec.padding[2], spec.groups)
    return (
        spec.pool in (None, MaxPool())
        and spec.kernel_height >= LEAST_PATCH_ROWS
        and down == (spec.kernel_height, 1, 0, 0, 1)
    )


def phase_weights(spec: LayerSpec, weights: Weights) -> FloatArray:
    """[K, phases, channels of a group, rows, columns]: the filters of each phase; taps that a phase lacks are zero."""
    geometry = geometry_of(spec)
    shape = (geometry.output_channels, geometry.group_channels, geometry.kernel_height, geometry.kernel_width)
    if not isinstance(spec, ConvTranspose2d):
        return weights.kernel.reshape(shape)[:, None]
    parts = np.zeros((geometry.output_channels, *geometry.phases, *shape[1:]), dtype=np.float32)
    for r in range(spec.kernel_height):
        j, phase_y = divmod(r * spec.dilation[0], spec.stride[0])
        for s in range(spec.kernel_width):
            i, phase_x = divmod(s * spec.dilation[1], spec.stride[1])
            parts[:, phase_y, phase_x, :, -1 - j, -1 - i] = weights.kernel[:, :, r, s]
    return parts.reshape(geometry.output_channels, geometry.phase_count, *shape[1:])
