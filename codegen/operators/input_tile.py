"""The input of one block in shared memory: which words, where they lie, and how the threads copy them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from codegen.operators.geometry import Geometry, Streams, geometry_of
from codegen.spec import Conv2d, ConvTranspose2d, Pair
from codegen.tiling import Tiling

Spec = Conv2d | ConvTranspose2d

BANKS = 32
"""Words of shared memory that one access reaches."""


@dataclass(frozen=True)
class InputTile:
    """One chunk of channels of the images of one block: [images][channels][rows][columns], pads included.

    Where a block computes whole rows, whole rows of the input lie there as they do in memory, without pads beside them:
    copies are long, consecutive positions read consecutive banks. What a position at an edge reads from beside the map
    it then reads from an area of zeros.
    """

    whole_rows: bool
    merged: bool
    """Whether a chunk of an image is one piece: its channels follow each other as they do in memory."""
    height: int
    """Rows of a channel, halo included."""
    row_words: int
    """From a row to the next."""
    channel_words: int
    """From a channel to the next."""
    chunk_channels: int
    images: int
    margin: int
    """Words before the first that is read: copies begin at multiples of their size."""
    unit: int
    """Words that one copy moves."""
    pass_channels: int
    """Channels that a thread's pointers reach together; a chunk is copied in as many passes as that takes."""
    pointers: int
    """Of a thread."""
    edges: tuple[int, ...]
    """Kernel columns that lie beside the map for some position: each has an address of its own."""
    zero_words: int
    """Of the area of zeros, behind the stages."""

    @property
    def image_words(self) -> int:
        return self.chunk_channels * self.channel_words

    @property
    def stage_words(self) -> int:
        return self.images * self.image_words

    @property
    def row_units(self) -> int:
        """Copies of what lies in one piece in memory too."""
        if self.merged:
            return self.image_words // self.unit
        return (self.channel_words if self.whole_rows else self.row_words) // self.unit

    @property
    def channel_units(self) -> int:
        return self.row_units if self.whole_rows else self.height * self.row_units

    @property
    def image_units(self) -> int:
        return self.row_units if self.merged else self.pass_channels * self.channel_units

    @property
    def passes(self) -> int:
        return self.chunk_channels // self.pass_channels

    @property
    def copies(self) -> int:
        """Of a thread, for one chunk."""
        return self.pointers * self.passes

    def shared_words(self, stages: int) -> int:
        return stages * self.stage_words + self.zero_words


def input_extent(geometry: Geometry, tiling: Tiling) -> Pair:
    """Rows and columns of a channel that the positions of one block read, halo included."""
    height = (tiling.tile_height * tiling.rows - 1) * geometry.tile_stride[0]
    width = (tiling.tile_width - 1) * geometry.tile_stride[1]
    rows = (geometry.kernel_height - 1) * geometry.dilation[0] + 1
    return height + rows, width + (geometry.kernel_width - 1) * geometry.dilation[1] + 1


@lru_cache(maxsize=4096)
def input_tile(spec: Spec, tiling: Tiling) -> InputTile:
    """The input of the blocks of a canonical spec."""
    geometry = geometry_of(spec)
    height, width = input_extent(geometry, tiling)
    plane = geometry.height * geometry.width
    streams = Streams.of(geometry, tiling)
    even = streams.span_channels % tiling.chunk_channels == 0
    words = spec.data_type == "float32"
    one_row = tiling.tile_height * tiling.rows >= geometry.positions_height
    whole_rows = (
        tiling.tile_width == geometry.positions_width
        and geometry.step == (1, 1)
        and tiling.form == "rolled"
        and spec.data_type != "float16"
    )
    merged = False
    edges: tuple[int, ...] = ()
    if whole_rows:
        row_words = geometry.width
        merged = even and one_row and geometry.pad_top == 0 and height == geometry.height
        chunk = tiling.chunk_channels * plane
        if merged and words and chunk % 4 == 0 and geometry.group_channels * plane % 4 == 0:
            unit, margin, channel_words = 4, 0, plane
        elif merged:
            unit, margin, channel_words = 1, 0, plane
        else:
            step = tiling.tile_height * tiling.rows * geometry.stride[0] * geometry.width
            unit = _unit(words, plane, 0 if one_row else step)
            margin = -geometry.pad_top * geometry.width % unit
            channel_words = _up(margin + height * geometry.width, unit)
        edges = _edges(geometry)
    else:
        across = 0 if tiling.tile_width >= geometry.positions_width else tiling.tile_width * geometry.stride[1]
        unit = _unit(words and geometry.step[1] == 1, geometry.width, across)
        margin = -geometry.pad_left % unit
        row_words = _up(margin + width, unit)
        channel_words = height * row_words
    channel_units = channel_words // unit if not merged else 0
    pass_channels, pointers = tiling.chunk_channels, 0
    if merged:
        pointers = _over(tiling.images * tiling.chunk_channels * plane // unit, tiling.threads)
    else:
        choices = []
        for channels in range(1, tiling.chunk_channels + 1):
            # A pass of several channels cannot end in the middle of a chunk.
            if tiling.chunk_channels % channels == 0 and (even or channels == 1):
                each = _over(tiling.images * channels * channel_units, tiling.threads)
                choices.append((each * (tiling.chunk_channels // channels), each, channels))
        _, pointers, pass_channels = min(choices)
    last_row = (tiling.rows - 1) * geometry.tile_stride[0] + (geometry.kernel_height - 1) * geometry.dilation[0]
    reach = (tiling.chunk_channels - 1) * channel_words + last_row * row_words
    zeros = reach + (geometry.kernel_width - 1) * geometry.dilation[1] + 1 + BANKS
    return InputTile(
        whole_rows=whole_rows,
        merged=merged,
        height=height,
        row_words=row_words,
        channel_words=channel_words,
        chunk_channels=tiling.chunk_channels,
        images=tiling.images,
        margin=margin,
        unit=unit,
        pass_channels=pass_channels,
        pointers=pointers,
        edges=edges,
        zero_words=zeros if edges else 0,
    )


def _unit(words: bool, length: int, step: int) -> int:
    """The longest copy that begins at multiples of its size: in memory rows are `length` long, tiles `step` apart."""
    return next(unit for unit in (4, 2, 1) if unit == 1 or (words and length % unit == step % unit == 0))


def _edges(geometry: Geometry) -> tuple[int, ...]:
    last = (geometry.positions_width - 1) * geometry.stride[1]
    starts = [s * geometry.dilation[1] - geometry.pad_left for s in range(geometry.kernel_width)]
    return tuple(s for s, start in enumerate(starts) if start < 0 or last + start >= geometry.width)


def _over(count: int, by: int) -> int:
    return -(-count // by)


def _up(count: int, unit: int) -> int:
    return _over(count, unit) * unit
