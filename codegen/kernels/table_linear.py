"""Fully connected layers for a few rows with their weights in a table: the table and the parts of table_linear.cu."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import ELEMENT_BYTES, from_float32
from codegen.ir.launch import GridSize, Launch, tensors_of
from codegen.ir.layer_spec import LayerSpec, Linear
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import weight_stream
from codegen.kernels.geometry import Geometry
from codegen.kernels.linear import region_of_rows
from codegen.kernels.lowering import AnyTiled, LoweredLinear, TiledLinear
from codegen.kernels.output_region import Region
from codegen.kernels.workload import SHARED_BYTES, Workload, table_refusal, table_workload

ENTRY = "tabled"
SOURCE = "table_linear.cu"

LANES = 32
"""Threads of a warp, which computes one output."""
OF_LANE = 4
"""Weights of a lane in a unit of the table: one load of 16 bytes brings them."""
UNIT_WEIGHTS = LANES * OF_LANE
COLUMN_BYTES = 2
ALIGNED_WORDS = 32
"""Alignment of the parts of a table: 128 bytes."""
AHEAD = 4
"""Units of a warp on their way at once."""
ROW_WORDS = (1, 2, 4)
"""Words of one access to shared memory, by which a thread reads all rows of an input."""
WARPS = (4, 8, 16, 32)
IMAGES = (1, 2, 4, 8)
"""Rows of the batch for which a block reads its weights once."""
CODE_INSTRUCTIONS = 600
"""Instructions of the kernel, about: they do not depend on the weights."""
SLICE_WEIGHTS = 2**22
"""Dense weights that are converted at a time: their places take several times their memory."""


def unsuitable(spec: LayerSpec, _geometry: Geometry) -> str:
    """Why the kernel cannot compute a layer: it takes linear layers only."""
    return "" if isinstance(spec, Linear) else "it is a convolution"


def refusal(layer: LoweredLinear, tiling: Tiling) -> str:
    """Why the kernel cannot have this combination of stages, clusters and order; empty if it can."""
    if tiling.cluster > 1:
        return "its inputs are not divided over clusters"
    if _row_words(layer.spec, tiling.images) not in ROW_WORDS:
        return "the rows of an input are not one access to shared memory"
    return table_refusal(tiling)


def table_bytes(layer: AnyTiled, nonzeros: float) -> float:
    """Expected size of the table if the non-zeros were spread evenly."""
    segments = layer.geometry.output_channels * layer.streams.chunks
    units = segments * -(-nonzeros // (segments * UNIT_WEIGHTS)) if nonzeros else 0
    return 4 * _head_words(layer) + units * _unit_bytes(layer)


def _unit_bytes(layer: AnyTiled) -> int:
    return UNIT_WEIGHTS * (ELEMENT_BYTES[layer.spec.data_type] + COLUMN_BYTES)


def _bias_word(layer: AnyTiled) -> int:
    """The word at which the biases begin, behind the places of the units."""
    return _aligned(layer.geometry.output_channels * layer.streams.chunks + 1)


def _head_words(layer: AnyTiled) -> int:
    return _bias_word(layer) + _aligned(layer.geometry.output_channels)


def _aligned(words: int) -> int:
    return -(-words // ALIGNED_WORDS) * ALIGNED_WORDS


def table(layer: AnyTiled, weights: Weights) -> NDArray[np.uint64]:
    """The weights in the layout of table_linear.cu, without those that are zero in the layer's data type.

    The columns of an output go to the lanes by the bank of shared memory that their inputs lie in, so that the lanes of
    a warp seldom meet in one.
    """
    outputs, inputs = layer.geometry.output_channels, layer.geometry.channels
    size, chunks = layer.tiling.chunk_channels, layer.streams.chunks
    counts = np.zeros((outputs, chunks), dtype=np.int64)
    slices = [slice(i, i + max(1, SLICE_WEIGHTS // inputs)) for i in range(0, outputs, max(1, SLICE_WEIGHTS // inputs))]
    for rows in slices:
        present = _bits(layer, weights.kernel[rows])[1]
        for chunk in range(chunks):
            counts[rows, chunk] = np.count_nonzero(present[:, chunk * size : (chunk + 1) * size], axis=1)
    units = -(-counts // UNIT_WEIGHTS)
    starts = np.concatenate([[0], np.cumsum(units)])
    # Each unit has the weights of its lanes, four each, then their columns.
    bits = np.zeros((int(starts[-1]), LANES, OF_LANE), dtype=_bits(layer, weights.kernel[:1])[0].dtype)
    columns = np.full(bits.shape, size, dtype=np.uint16)
    for rows in slices:
        values, present = _bits(layer, weights.kernel[rows])
        row, column = np.nonzero(present)
        segment = (row + rows.start) * chunks + column // size
        order = np.argsort(segment * LANES + column % size % LANES, kind="stable")
        row, column, segment = row[order], column[order], segment[order]
        count = counts.ravel()[segment]
        first = np.searchsorted(segment, segment)
        rank = np.arange(len(segment)) - first
        lane = ((rank + 1) * LANES - 1) // np.maximum(count, 1)
        of_lane = rank - lane * count // LANES
        place = starts[segment] + of_lane // OF_LANE, lane, of_lane % OF_LANE
        bits[place] = values[row, column]
        columns[place] = column % size
    return np.concatenate([_head(layer, starts, weights), _joined(bits, columns)]).view(np.uint64)


def _bits(layer: AnyTiled, kernel: NDArray[np.float32]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.bool_]]:
    """The bits of the weights in the layer's data type, and which weights are not zero."""
    rounded = from_float32(kernel, layer.spec.data_type)
    bits = rounded.view(f"u{rounded.itemsize}")
    return bits, (bits << 1).astype(bits.dtype) != 0  # -0.0 is zero


def _head(layer: AnyTiled, starts: NDArray[np.int64], weights: Weights) -> NDArray[np.uint32]:
    head = np.zeros(_head_words(layer), dtype=np.uint32)
    head[: len(starts)] = starts
    head[_bias_word(layer) :][: layer.geometry.output_channels] = weights.bias.astype(np.float32).view(np.uint32)
    return head


def _joined(bits: NDArray[np.unsignedinteger], columns: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """The units: in 16-bit types a lane's weights beside its columns, otherwise all weights before all columns."""
    if bits.itemsize == COLUMN_BYTES:
        return np.concatenate([bits, columns], axis=2).view(np.uint32).ravel()
    parts = [
        np.ascontiguousarray(each).view(np.uint32).reshape(len(bits), UNIT_WEIGHTS * each.itemsize // 4)
        for each in (bits, columns)
    ]
    return np.concatenate(parts, axis=1).ravel()


def _packed_rows(spec: LayerSpec, images: int) -> int:
    """Rows that share a word of shared memory: two of 16-bit types, which are widened as they are multiplied."""
    return 2 if ELEMENT_BYTES[spec.data_type] == 2 and images % 2 == 0 else 1


def _row_words(spec: LayerSpec, images: int) -> int:
    """Words of shared memory for the rows of a column."""
    return images // _packed_rows(spec, images)


def launch_of(layer: TiledLinear, part: Part | None = None) -> Launch:
    """Rows of the batch in x, outputs in z."""
    tiling = layer.tiling
    groups = layer.streams.count if part is None else part.end - part.first
    return Launch(
        kernel=ENTRY,
        grid=(GridSize(images=tiling.images), GridSize(), GridSize(groups)),
        block=(tiling.tile_width, 1, 1),
        shared_bytes=4 * _row_words(layer.spec, tiling.images) * (tiling.chunk_channels + 1),
        arguments=(*tensors_of(layer.spec), "images"),
        data_type=layer.spec.data_type,
        waits=tiling.waits,
    )


def block_region(layer: TiledLinear, block: tuple[int, int, int]) -> Region:
    """The outputs of the block with these rows and this stream; its rows may reach beyond the batch."""
    return region_of_rows(layer, block, layer.tiling.images)


def sources(layer: TiledLinear) -> dict[str, str]:
    """The generated headers that table_linear.cu includes."""
    images = layer.tiling.images
    values: dict[str, int | str] = {
        "STAGE": 0,
        "UNIT": 4 if layer.spec.inputs % 4 == 0 else 1,
        "IMAGES": images,
        "PACKED_ROWS": _packed_rows(layer.spec, images),
        "AHEAD": AHEAD,
        "BIAS_WORD": _bias_word(layer),
        "HEAD_WORDS": _head_words(layer),
    }
    return {"parameters.h": weight_stream.parameters(layer, values), "copies.h": ""}


def workload(layer: TiledLinear) -> Workload:
    """The share of a group of warps in code that all run: it has no weights."""
    spec = layer.spec
    element = ELEMENT_BYTES[spec.data_type]
    return table_workload(
        streams=layer.streams.count,
        threads=layer.tiling.tile_width,
        sums=layer.tiling.images,
        instructions=CODE_INSTRUCTIONS,
        tile_bytes=layer.tiling.images * element * spec.inputs,
        input_bytes=element * spec.inputs,
        output_bytes=element * spec.outputs,
    )


def candidates(layer: LoweredLinear) -> Iterator[Tiling]:
    """Candidate tilings in a fixed order, all of which fit."""
    for images in (each for each in IMAGES if _row_words(layer.spec, each) in ROW_WORDS):
        most = SHARED_BYTES // (4 * _row_words(layer.spec, images)) // LANES * LANES - LANES
        chunks = -(-layer.spec.inputs // most)
        size = -(-layer.spec.inputs // (chunks * LANES)) * LANES
        for warps in WARPS:
            yield Tiling("table_linear", LANES * warps, 1, 1, warps, size, stages=1, images=images)
