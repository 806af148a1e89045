"""The input of one block in shared memory: which words, where they lie, and how the threads copy them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from codegen.ir.layer_spec import Pair
from codegen.ir.tiling import Tiling
from codegen.kernels.fp16_packing import Pairing
from codegen.kernels.geometry import Geometry

BANKS = 32
"""Words of shared memory that one access reaches."""
SPREAD_STEP = 2
"""Columns from one that is read to the next where a copy of several float16 words loads what is between too."""
MOST_EDGES = 8
"""Most edges of a tile without rows above and below the map: those of a 3x3 filter. Each is a register per stage."""


class Edge(NamedTuple):
    """An element beside the map that a position may read: it reads zeros instead."""

    row: int | None
    """Row of the thread's window; None for all rows, if those above and below the map are in shared memory."""
    column: int
    """Column of the filter."""


@dataclass(frozen=True)
class InputTile:
    """One chunk of channels of the images of one block: [images][channels][rows][columns], pads included.

    A word holds one element; in float16 it holds two, of two images, or of two columns as far apart as the tile is
    wide. Where it holds those of two images, there are half as many [images] here as the block has.

    Where a block computes whole rows, whole rows of the input lie there as they do in memory, without pads beside them:
    copies are long, consecutive positions read consecutive banks. What a position at an edge reads from beside the map
    it then reads from an area of zeros. Where a block has whole maps, that goes for rows above and below too, if then a
    chunk is one piece.
    """

    whole_rows: bool
    merged: bool
    """Whether a chunk of an image is one piece: its channels follow each other as they do in memory."""
    height: int
    """Rows of a channel, halo included."""
    row_words: int
    """Words from a row to the next."""
    channel_words: int
    """Words from a channel to the next."""
    image_words: int
    """Words from an image to the next."""
    stage_words: int
    """Words from a chunk to the next."""
    margin: int
    """Words before the first that is read: copies begin at multiples of their size."""
    patch_gap: int
    """Words between the patches of a row: of positions that share no input, so that their loads meet no bank twice."""
    vector: int
    """Words that one load reads of a patch; 1 where inputs are read one by one."""
    unit: int
    """Words that one copy moves."""
    spread: bool
    """Whether a copy of several words keeps every second element of what it loads."""
    row_units: int
    """Copies of what lies in one piece in memory too."""
    channel_units: int
    image_units: int
    """Copies of one pass."""
    pass_channels: int
    """Channels that a thread's pointers reach together; a chunk is copied in as many passes as that takes."""
    passes: int
    pointers: int
    """Pointers per thread."""
    is_even: bool
    """Whether all threads make equally many copies."""
    rows_above: int
    """Rows of zeros before the first row of the map that it has."""
    edges: tuple[Edge, ...]
    """Elements beside the map for some position: each has an address of its own."""
    zero_words: int
    """Words in the area of zeros, behind the stages."""
    zeros_before: int
    """Zeros before the address that replaces a position's own."""

    @property
    def copies(self) -> int:
        """Copies per thread and chunk."""
        return self.pointers * self.passes

    @property
    def pointers_held(self) -> int:
        """Pointers per thread that take registers: those, and the addresses around whole maps, held for each stage."""
        return self.pointers + (len(self.edges) // 2 if any(edge.row is not None for edge in self.edges) else 0)

    def edge(self, row: int, column: int) -> int | None:
        """The number of the edge at a row of the window and a column of the filter; None if there is none."""
        return next((i for i, each in enumerate(self.edges) if each in ((row, column), (None, column))), None)

    def shared_words(self, stages: int) -> int:
        return stages * self.stage_words + self.zero_words


def input_extent(geometry: Geometry, tiling: Tiling) -> Pair:
    """Rows and columns of a channel that the positions of one block read, halo included."""
    height = (tiling.tile_height * tiling.rows - 1) * geometry.tile_stride[0]
    width = (tiling.tile_width - 1) * geometry.tile_stride[1]
    rows = (geometry.kernel_height - 1) * geometry.dilation[0] + 1
    return height + rows, width + (geometry.kernel_width - 1) * geometry.dilation[1] + 1


def input_tile(geometry: Geometry, tiling: Tiling, span_channels: int, pair: Pairing, block_threads: int) -> InputTile:
    """The input tile of a convolution whose streams read `span_channels`, copied by `block_threads`.

    It depends on neither the stages nor the output channels of a K group.
    """
    height, width = input_extent(geometry, tiling)
    plane = geometry.height * geometry.width
    even = span_channels % tiling.chunk_channels == 0
    images = tiling.images // pair.images
    one_row = tiling.tile_height * tiling.rows >= geometry.positions_height
    whole_rows = (
        tiling.tile_width == geometry.positions_width
        and geometry.step == (1, 1)
        and geometry.patch_rows == 1
        and tiling.form == "rolled"
        and pair.columns == 1
    )
    merged = False
    rows_above = geometry.pad_top
    edges: tuple[Edge, ...] = ()
    gap, vector, spread = 0, 1, False
    if whole_rows:
        row_words = geometry.width
        merged = even and one_row and geometry.pad_top == 0 and height == geometry.height
        chunk = tiling.chunk_channels * plane
        long = chunk % 4 == geometry.group_channels * plane % 4 == 0
        edges = tuple(Edge(None, s) for s in range(geometry.kernel_width) if _is_beside(geometry, 0, s, rows=False))
        if not merged and long and even and _unit(plane, 0) == 1:
            around = _around(geometry, tiling)
            if around:
                merged, height, rows_above, edges = True, geometry.height, 0, around
        if merged and long:
            unit, margin, channel_words = 4, 0, plane
        elif merged:
            unit, margin, channel_words = 1, 0, plane
        else:
            step = geometry.step_of(tiling.tile_height * tiling.rows) * geometry.stride[0] * geometry.width
            unit = _unit(plane, 0 if one_row else step)
            margin = -geometry.pad_top * geometry.width % unit
            channel_words = _up(margin + height * geometry.width, unit)
    else:
        one_tile = tiling.tile_width >= geometry.positions_width and pair.columns == 1
        across = 0 if one_tile else geometry.step_of(tiling.tile_width) * geometry.stride[1]
        unit = _unit(geometry.width, across) if geometry.step[1] == 1 else 1
        if pair.halves > 1 and geometry.step[1] == SPREAD_STEP and geometry.pad_left == 0:
            unit = _unit(geometry.width, across, SPREAD_STEP)
            spread = unit > 1
        margin = -geometry.pad_left % unit
        if geometry.has_patches_apart:
            # With an odd number of loads from a patch to the next, no two lanes meet in a bank.
            vector = math.gcd(unit, geometry.kernel_width)
            if geometry.kernel_width // vector % 2 == 0:
                gap = unit = vector
        row_units = _over(margin + width, unit)
        row_words = row_units * unit + tiling.tile_width * gap
        channel_words = height * row_words
    words = plane if merged else channel_words if whole_rows else height * row_units * unit
    # With larger filters one pointer for a chunk of whole maps was slower, by up to a third in float16.
    whole = merged and geometry.taps > 1
    pass_channels = tiling.chunk_channels if whole else _passes(tiling, images, words, unit, block_threads, even)
    image_units = pass_channels * words // unit
    channel_units = image_units if merged else words // unit
    pointers = _over(images * image_units, block_threads)
    image_words = tiling.chunk_channels * channel_words
    if whole_rows and images > 1:
        # The first position of an image reads the bank after that of the last position of the one before.
        image_words += _up((tiling.tile_height * row_words - image_words) % BANKS, unit)
    # Zeros lie in the banks of the elements that they stand for, in every stage.
    stage_words = _up(images * image_words, BANKS if edges else 1)
    last_row = (tiling.rows - 1) * geometry.tile_stride[0] + (geometry.kernel_height - 1) * geometry.dilation[0]
    reach = (tiling.chunk_channels - 1) * channel_words + last_row * row_words
    zeros_before = _up(max(geometry.pad_left, 0) + (geometry.pad_top - rows_above) * row_words, BANKS)
    zeros = zeros_before + BANKS + reach + (geometry.kernel_width - 1) * geometry.dilation[1]
    return InputTile(
        whole_rows=whole_rows,
        merged=merged,
        height=height,
        row_words=row_words,
        channel_words=channel_words,
        image_words=image_words,
        stage_words=stage_words,
        margin=margin,
        patch_gap=gap,
        vector=vector,
        unit=unit,
        spread=spread,
        row_units=channel_units if whole_rows else row_units,
        channel_units=channel_units,
        image_units=image_units,
        pass_channels=pass_channels,
        passes=tiling.chunk_channels // pass_channels,
        pointers=pointers,
        is_even=images * image_units == pointers * block_threads,
        rows_above=rows_above,
        edges=edges,
        zero_words=zeros if edges else 0,
        zeros_before=zeros_before,
    )


def _passes(tiling: Tiling, images: int, words: int, unit: int, block_threads: int, even: bool) -> int:
    """Channels of a pass: those for which a thread makes the fewest copies, then those with the fewest pointers.

    A channel of an image has `words`, of which a copy moves `unit`.
    """

    def cost(channels: int) -> tuple[int, int]:
        pointers = _over(images * channels * words // unit, block_threads)
        return pointers * (tiling.chunk_channels // channels), pointers

    # A pass of several channels cannot end in the middle of a chunk, nor one in the middle of a copy.
    divisors = [n for n in range(1, tiling.chunk_channels + 1) if tiling.chunk_channels % n == 0 and (even or n == 1)]
    return min((n for n in divisors if n * words % unit == 0), key=cost)


def _unit(length: int, step: int, elements: int = 1) -> int:
    """Words of the longest copy that begins at multiples of its size, in rows of `length` elements with tiles `step`
    apart. Each word keeps one of `elements` elements.
    """
    return next(unit for unit in (4, 2, 1) if length % (unit * elements) == step % (unit * elements) == 0 or unit == 1)


def reads_beside(geometry: Geometry) -> bool:
    """Whether some position reads beside the map."""
    filter_elements = product(range(geometry.kernel_height), range(geometry.kernel_width))
    return any(_is_beside(geometry, r, s, rows=True) for r, s in filter_elements)


def _around(geometry: Geometry, tiling: Tiling) -> tuple[Edge, ...]:
    """The edges of a tile of whole maps without rows above and below them; empty if a block cannot have such a tile."""
    if tiling.rows != 1 or tiling.tile_height != geometry.positions_height or geometry.pad_top < 0:
        return ()
    edges = tuple(
        Edge(r * geometry.dilation[0], s)
        for r in range(geometry.kernel_height)
        for s in range(geometry.kernel_width)
        if _is_beside(geometry, r, s, rows=True)
    )
    return edges if len(edges) <= MOST_EDGES else ()


def _is_beside(geometry: Geometry, r: int, s: int, *, rows: bool) -> bool:
    """Whether an element of the filter lies beside the map for some position; above and below it if `rows` count."""
    across = s * geometry.dilation[1] - geometry.pad_left
    down = r * geometry.dilation[0] - geometry.pad_top
    last_across = (geometry.positions_width - 1) * geometry.stride[1] + across
    last_down = (geometry.positions_height - 1) * geometry.stride[0] + down
    return across < 0 or last_across >= geometry.width or (rows and (down < 0 or last_down >= geometry.height))


def _over(count: int, by: int) -> int:
    return -(-count // by)


def _up(count: int, unit: int) -> int:
    return _over(count, unit) * unit
