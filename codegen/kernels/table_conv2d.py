"""Convolutions at few positions with their weights in a table: the table and the generated parts of table_conv2d.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import ELEMENT_BYTES, from_float32, to_float32
from codegen.ir.launch import GridSize, Launch, tensors_of
from codegen.ir.layer_spec import Conv2d, LayerSpec, is_pooled, prepares_inputs
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import weight_stream
from codegen.kernels.convolution import block_region, map_parameters
from codegen.kernels.geometry import Geometry
from codegen.kernels.lowering import AnyTiled, LoweredConvolution, TiledConvolution
from codegen.kernels.workload import WARP, Workload, table_refusal, table_workload

__all__ = [
    "ENTRY",
    "SOURCE",
    "block_region",
    "launch_of",
    "refusal",
    "sources",
    "table",
    "table_bytes",
    "unsuitable",
    "workload",
]

ENTRY = "tabled_conv2d"
SOURCE = "table_conv2d.cu"

UNIT_WEIGHTS = 4
UNIT_WORDS = 2 * UNIT_WEIGHTS
"""Words of a unit: a value and the place of its input for each weight."""
BUFFER_UNITS = 32
"""Units of an output channel on their way to shared memory at once."""
BUFFER_WORDS = BUFFER_UNITS * UNIT_WORDS + 4
"""Words of a buffer: the output channels of a warp read theirs from different banks."""
ALIGNED_WORDS = 32
"""Alignment of the parts of a table: 128 bytes."""
MOST_THREADS = 1024
MOST_SLICES = 8
ROWS = (1, 2, 4, 7, 8)
LANES = (8, 16, 32, 64)
CLUSTERS = (1, 2, 4, 8)
BLOCKS = (132, 264)
"""Most blocks of a layer: those that an H100 or H200 runs at once, one or two per multiprocessor."""
MOST_ACROSS = 8
"""Most tiles beside each other."""
CODE_INSTRUCTIONS = 800
"""Instructions of the kernel, about: they do not depend on the weights."""


def unsuitable(spec: LayerSpec, geometry: Geometry) -> str:
    """Why the kernel cannot compute a layer, whatever the tiling; empty if it can."""
    if not isinstance(spec, Conv2d):
        return "it is no ordinary convolution"
    if geometry.groups > 1 or geometry.patch_rows > 1:
        return "weights of a grouped convolution or of a patch embedding are not put into a table"
    return "it computes no input bounds, no gates and no pool" if prepares_inputs(spec) or is_pooled(spec) else ""


def refusal(_layer: LoweredConvolution, tiling: Tiling) -> str:
    """Why the kernel cannot have this combination of stages, clusters and order; empty if it can."""
    return "a block has one image" if tiling.images > 1 else table_refusal(tiling)


@dataclass(frozen=True)
class Tile:
    """The positions of a block, and a chunk of its input in shared memory: [channels][row][column], with pads.

    A word of shared memory is an element, two neighbouring ones, or those of two positions of a thread.
    """

    rows: int
    columns: int
    """Columns of positions."""
    row_y: int
    row_x: int
    """Rows and columns from a position of a thread to its next one."""
    input_rows: int
    row_places: int
    lanes: int
    """Threads of an output channel, of which there may be more than positions."""
    slices: int
    """Slices of the weights of an output channel, each with lanes of its own."""
    paired: int
    """Positions of a thread in a word: 2 of 16-bit types if a thread has an even number, half of them apart."""

    @property
    def plane(self) -> int:
        """Places of a channel."""
        return self.input_rows * self.row_places


def tile_of(layer: AnyTiled) -> Tile:
    """The tile of a block."""
    geometry, tiling = layer.geometry, layer.tiling
    row_y, row_x = (0, tiling.tile_width) if geometry.is_pointwise else (tiling.tile_height, 0)
    rows = tiling.tile_height if geometry.is_pointwise else tiling.tile_height * tiling.rows
    columns = tiling.tile_width * tiling.rows if geometry.is_pointwise else tiling.tile_width
    stride, paired = geometry.tile_stride, _paired(layer)
    lanes = tiling.tile_width * tiling.tile_height
    lanes = next((each for each in (8, 16) if lanes <= each), -(-lanes // WARP) * WARP)
    slices = MOST_SLICES
    while slices > 1 and slices * lanes * tiling.group_outputs > MOST_THREADS:
        slices //= 2
    return Tile(
        rows,
        columns,
        row_y,
        row_x,
        (rows - tiling.rows // 2 * row_y * (paired - 1) - 1) * stride[0] + _reach(geometry, 0),
        (columns - tiling.rows // 2 * row_x * (paired - 1) - 1) * stride[1] + _reach(geometry, 1),
        lanes,
        slices,
        paired,
    )


def _reach(geometry: Geometry, axis: int) -> int:
    """Rows (0) or columns (1) of the input that a position reads from."""
    size = (geometry.kernel_height, geometry.kernel_width)[axis]
    return (size - 1) * geometry.dilation[axis] + 1


def _paired(layer: AnyTiled) -> int:
    packs = ELEMENT_BYTES[layer.spec.data_type] == 2 and not layer.pairing.whole_words
    return 2 if packs and layer.tiling.rows % 2 == 0 else 1


def threads_of(layer: AnyTiled) -> int:
    """Threads of a block."""
    tile = tile_of(layer)
    return tile.lanes * tile.slices * layer.tiling.group_outputs


def _copied(layer: AnyTiled) -> int:
    """Words that one copy moves; elements of 16 bits, unless two are a word, are widened one by one."""
    geometry, tile = layer.geometry, tile_of(layer)
    if layer.spec.data_type != "float32" and not layer.pairing.whole_words:
        return 1
    return 4 if geometry.is_pointwise and tile.columns % 4 == geometry.width % 4 == 0 else 1


def _tile_words(layer: AnyTiled) -> int:
    """Words of a chunk and of the zeros behind it, one for each place that a position could read from."""
    return -(-(layer.tiling.chunk_channels + 1) * tile_of(layer).plane // 4) * 4


def shared_words(layer: AnyTiled) -> int:
    """Words of shared memory: a chunk and the buffers of units, or afterwards the sums."""
    tile, tiling = tile_of(layer), layer.tiling
    buffers = threads_of(layer) // tile.lanes * BUFFER_WORDS
    return max(_tile_words(layer) + buffers, threads_of(layer) * tiling.rows * layer.pairing.neighbours)


def _segments(layer: AnyTiled) -> int:
    """Chunks of all blocks of a cluster together."""
    return layer.streams.chunks * layer.tiling.cluster


def table_bytes(layer: AnyTiled, nonzeros: float) -> float:
    """Expected size of the table if the non-zeros were spread evenly."""
    return 4 * _head_words(layer) + 4 * UNIT_WORDS / UNIT_WEIGHTS * nonzeros


def _most_word(layer: AnyTiled) -> int:
    return layer.geometry.output_channels * _segments(layer) + 1


def _bias_word(layer: AnyTiled) -> int:
    return _aligned(_most_word(layer) + 1)


def _head_words(layer: AnyTiled) -> int:
    return _bias_word(layer) + _aligned(layer.geometry.output_channels)


def _aligned(words: int) -> int:
    return -(-words // ALIGNED_WORDS) * ALIGNED_WORDS


def table(layer: AnyTiled, weights: Weights) -> NDArray[np.uint64]:
    """The non-zero weights in the layout of table_conv2d.cu."""
    geometry, tile, data_type = layer.geometry, tile_of(layer), layer.spec.data_type
    size, segments, outputs = layer.tiling.chunk_channels, _segments(layer), geometry.output_channels
    rounded = to_float32(from_float32(weights.kernel, data_type), data_type)
    filters = rounded.reshape(outputs, geometry.channels, geometry.kernel_height, geometry.kernel_width)
    output, channel, row, column = np.nonzero(filters)
    segment = output * segments + channel // size
    counts = np.bincount(segment, minlength=outputs * segments)
    units = -(-counts // UNIT_WEIGHTS)
    starts = np.concatenate([[0], np.cumsum(units)])
    entries = np.zeros((int(starts[-1]) * UNIT_WEIGHTS, 2), dtype=np.uint32)
    entries[:, 1] = size * tile.plane * 4
    place = starts[segment] * UNIT_WEIGHTS + np.arange(len(output)) - (np.cumsum(counts) - counts)[segment]
    entries[place, 0] = filters[output, channel, row, column].view(np.uint32)
    down, across = geometry.dilation
    entries[place, 1] = 4 * (channel % size * tile.plane + row * down * tile.row_places + column * across)
    head = np.zeros(_head_words(layer), dtype=np.uint32)
    head[: len(starts)] = starts
    head[_most_word(layer)] = max(1, units.max())  # a block has a turn even without weights
    head[_bias_word(layer) :][:outputs] = weights.bias.astype(np.float32).view(np.uint32)
    return np.concatenate([head, entries.ravel()]).view(np.uint64)


def launch_of(layer: TiledConvolution, part: Part | None = None) -> Launch:
    """Tiles, images, K groups: the blocks of a cluster are neighbours on z."""
    spec = layer.spec
    streams = layer.streams.count if part is None else part.end - part.first
    return Launch(
        kernel=ENTRY,
        grid=(GridSize(prod(layer.tiles)), GridSize(images=1), GridSize(streams)),
        block=(threads_of(layer), 1, 1),
        shared_bytes=4 * shared_words(layer),
        arguments=(*tensors_of(spec), "images", "output_step"),
        data_type=spec.data_type,
        output_step=prod(spec.output_shape),
        waits=True,
    )


def sources(layer: TiledConvolution) -> dict[str, str]:
    """The generated headers that table_conv2d.cu includes."""
    geometry, tile = layer.geometry, tile_of(layer)
    values: dict[str, int | str] = {
        "CLUSTER": 1,
        "WAITS": 1,
        "NEIGHBOURS": layer.pairing.neighbours,
        "SHARES": layer.tiling.cluster,
        "STAGE": 0,
        "UNIT": _copied(layer),
        **map_parameters(layer),
        "TILE_STRIDE_Y": geometry.tile_stride[0],
        "TILE_STRIDE_X": geometry.tile_stride[1],
        "TILE_ROWS": tile.rows,
        "TILE_COLUMNS": tile.columns,
        "ROW_Y": tile.row_y,
        "ROW_X": tile.row_x,
        "ROW_PLACES": tile.row_places,
        "PLANE": tile.plane,
        "ZEROS": tile.plane,
        "TILE_WORDS": _tile_words(layer),
        "LANES": tile.lanes,
        "SLICES": tile.slices,
        "PAIRED": tile.paired,
        "BUFFER_UNITS": BUFFER_UNITS,
        "BUFFER_WORDS": BUFFER_WORDS,
        "MOST_WORD": _most_word(layer),
        "BIAS_WORD": _bias_word(layer),
        "HEAD_WORDS": _head_words(layer),
    }
    return {"parameters.h": weight_stream.parameters(layer, values), "copies.h": ""}


def workload(layer: TiledConvolution) -> Workload:
    """The share of a stream in code that all streams run: it has no weights."""
    spec, tile = layer.spec, tile_of(layer)
    element = ELEMENT_BYTES[spec.data_type]
    word = element * layer.pairing.neighbours * tile.paired
    return table_workload(
        streams=layer.streams.count,
        threads=threads_of(layer),
        sums=layer.tiling.rows * layer.pairing.neighbours,
        instructions=CODE_INSTRUCTIONS,
        tile_bytes=layer.streams.channels * tile.plane * word,
        input_bytes=element * layer.pairing.neighbours * layer.geometry.image_elements,
        output_bytes=element * spec.output_channels * spec.output_height * spec.output_width,
    )


def candidates(layer: LoweredConvolution) -> Iterator[Tiling]:
    """Candidate tilings in a fixed order: a block has all its channels at once, and a GPU all blocks."""
    geometry = layer.geometry
    for width, height, rows in _tiles(geometry):
        for cluster in CLUSTERS:
            share = -(-geometry.channels // cluster)
            tiling = Tiling("table_conv2d", width, height, rows, cluster, share, 1, cluster=cluster)
            found = set()
            for blocks in BLOCKS:
                groups = max(1, blocks // (prod(layer.tiled(tiling).tiles) * cluster))
                outputs = -(-geometry.output_channels // (groups * cluster)) * cluster
                found.add(min(outputs, MOST_THREADS // tile_of(layer.tiled(tiling)).lanes // cluster * cluster))
            for outputs in sorted(found):
                yield replace(tiling, group_outputs=outputs)


def _tiles(geometry: Geometry) -> Iterator[tuple[int, int, int]]:
    """Columns, rows and positions per thread of an output channel's threads: most of their lanes have some."""
    high, wide = geometry.positions_height, geometry.positions_width
    for rows in ROWS:
        for lanes in LANES:
            if geometry.is_pointwise:
                width = -(-wide // (-(-wide // (lanes * rows)) * rows))
                yield (-(-width // 4) * 4 if wide % 4 == 0 else width), 1, rows
                continue
            for across in range(1, MOST_ACROSS + 1):
                width = -(-wide // across)
                if width <= lanes < 2 * width * min(high, lanes // width):
                    yield width, min(high, lanes // width), rows
