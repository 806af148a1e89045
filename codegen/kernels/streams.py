"""Streams: how a tiling divides the channels and output channels of a layer into instruction streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.ir.tiling import Tiling
from codegen.kernels.geometry import Geometry

QUAD = 4
"""Channels of cluster_conv2d whose elements at one place lie side by side in shared memory."""


@dataclass(frozen=True)
class Streams:
    """Division of channels and output channels by a tiling: a stream is the instructions of one K group.

    Streams of a span read the same channels: a span is one group of a grouped convolution, or several if the groups are
    so small that a stream serves them together.

    With clusters a K group has several streams, its shares, which are neighbours: each has some of the channels for all
    output channels of the group. Each stores some of the output channels; a large block all, for some of the rows.
    """

    span_channels: int
    span_outputs: int
    group_outputs: int
    streams_per_span: int
    spans: int
    chunk_channels: int
    chunks: int
    """Turns of the loop over channels."""
    shares: int = 1
    """Streams of a K group."""
    storing_shares: int = 1
    """Streams of a K group that store different output channels."""

    @staticmethod
    def of(geometry: Geometry, tiling: Tiling) -> Streams:
        groups = max(1, tiling.group_outputs // geometry.group_outputs) if geometry.groups > 1 else 1
        span_channels, span_outputs = groups * geometry.group_channels, groups * geometry.group_outputs
        channels = -(-span_channels // tiling.cluster)
        return Streams(
            span_channels=span_channels,
            span_outputs=span_outputs,
            group_outputs=tiling.group_outputs,
            streams_per_span=-(-span_outputs // (tiling.group_outputs * tiling.block_groups)) * tiling.block_groups,
            spans=geometry.groups // groups,
            chunk_channels=tiling.chunk_channels,
            chunks=-(-channels // tiling.chunk_channels),
            shares=tiling.cluster,
            storing_shares=1 if tiling.is_large else tiling.cluster,
        )

    @property
    def groups(self) -> int:
        """K groups."""
        return self.spans * self.streams_per_span

    @property
    def count(self) -> int:
        return self.groups * self.shares

    @property
    def channels(self) -> int:
        """Channels of a stream; the last shares of a linear layer may have fewer, or none."""
        return -(-self.span_channels // self.shares)

    @property
    def stored_outputs(self) -> int:
        """Output channels that a stream stores."""
        return self.group_outputs // self.storing_shares

    def first_output(self, stream: int) -> int:
        """The first output channel that a stream stores."""
        group, share = divmod(stream, self.shares)
        span, within = divmod(group, self.streams_per_span)
        first = span * self.span_outputs + within * self.group_outputs
        return first + share % self.storing_shares * self.stored_outputs

    def stored(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """Values of the output channels [K] as [streams, stored_outputs], zero beyond the last output channel."""
        by_stream = self.by_stream(values).reshape(-1, self.stored_outputs)
        return np.repeat(by_stream, self.shares // self.storing_shares, axis=0)

    @property
    def adds_bias(self) -> NDArray[np.bool_]:
        """[streams]: whether a stream adds the biases of the output channels it stores: one stream of each."""
        first: NDArray[np.bool_] = np.arange(self.count) % (self.shares // self.storing_shares) == 0
        return first

    def by_stream(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """Values of the output channels [K, ...] as [K groups, group_outputs, ...], zero beyond the last one.

        A K group is one stream, unless it has several shares.
        """
        spans = values.reshape(self.spans, self.span_outputs, *values.shape[1:])
        missing = self.streams_per_span * self.group_outputs - self.span_outputs
        padded = np.pad(spans, ((0, 0), (0, missing), *((0, 0),) * (values.ndim - 1)))
        return padded.reshape(self.groups, self.group_outputs, *values.shape[1:])


def fits(geometry: Geometry, tiling: Tiling) -> bool:
    """Whether a tiling divides a layer evenly into streams.

    A stream of several groups has them whole, and their channels in one chunk; other chunks have channels of one group
    only, and those of a patch embedding rows of one channel. The blocks of a cluster have equally many channels, in
    whole chunks of whole quads, and store equally many output channels; in a linear layer the last may have fewer
    channels.
    """
    if tiling.cluster > 1:
        return (
            geometry.groups == geometry.patch_rows == 1
            and tiling.chunk_channels % QUAD == 0
            and tiling.group_outputs % tiling.cluster == 0
            and (_threads_reach(geometry, tiling) if geometry.is_linear else _shares_are_whole(geometry, tiling))
        )
    if geometry.groups == 1:
        return geometry.patch_rows == 1 or geometry.patch_rows % tiling.chunk_channels == 0
    if tiling.group_outputs <= geometry.group_outputs:
        return tiling.chunk_channels <= geometry.group_channels
    groups, rest = divmod(tiling.group_outputs, geometry.group_outputs)
    return rest == 0 and geometry.groups % groups == 0 and tiling.chunk_channels == groups * geometry.group_channels


def _shares_are_whole(geometry: Geometry, tiling: Tiling) -> bool:
    return geometry.channels % (tiling.cluster * tiling.chunk_channels) == 0


def _threads_reach(geometry: Geometry, tiling: Tiling) -> bool:
    """Whether the threads of a block copy a row of a chunk at once, and have a row of the batch each."""
    unit = QUAD if geometry.channels % QUAD == 0 else 1
    return tiling.rows == 1 and tiling.chunk_channels <= tiling.tile_width * unit
