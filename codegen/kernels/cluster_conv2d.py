"""Convolutions whose channels are split over the blocks of a cluster: the generated parts of cluster_conv2d.cu."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from codegen.ir.dtypes import ELEMENT_BYTES
from codegen.ir.launch import GridSize, Launch, numbers_of, tensors_of
from codegen.ir.layer_spec import Conv2d, LayerSpec, is_bounded, is_pooled, prepares_inputs
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import weight_stream
from codegen.kernels.channel_gates import gate_loads, gate_parameters, with_gates
from codegen.kernels.epilogue_ptx import added_instructions
from codegen.kernels.geometry import QUAD, Geometry
from codegen.kernels.lowering import LoweredConvolution, TiledConvolution
from codegen.kernels.output_region import Region
from codegen.kernels.shared_input_tile import input_extent
from codegen.kernels.weight_stream import Store, Tap
from codegen.kernels.workload import Workload, exchange_instructions

ENTRY = "stationary"
SOURCE = "cluster_conv2d.cu"

CLUSTERS = (8, 4, 2)
"""Blocks of a cluster: every GPU that has clusters takes eight."""
GROUP_OUTPUTS = (8, 16, 24, 32, 40, 48, 64)
CHUNKS = (8, 16, 32, 64)
REFILLED_STAGES = 3
"""Chunks in flight where they are not all there at once."""
LEAST_THREADS, MOST_THREADS, MOST_TILES = 32, 1024, 16
"""Of the blocks of a pointwise layer; of a block; and of a map."""
LOOP_INSTRUCTIONS = 12.0
"""Code of the loop of one pointer."""


def unsuitable(spec: LayerSpec, geometry: Geometry) -> str:
    """Why the kernel cannot compute a layer, whatever the tiling; empty if it can."""
    if not isinstance(spec, Conv2d):
        return "it is no ordinary convolution"
    if spec.data_type != "float32":
        return f"it computes float32, not {spec.data_type}"
    if geometry.groups > 1 or geometry.patch_rows > 1:
        return "channels of a grouped convolution or of a patch embedding are not divided over clusters"
    return "it computes no pool" if is_pooled(spec) else ""


def refusal(_layer: LoweredConvolution, tiling: Tiling) -> str:
    """Why the kernel cannot have this combination of stages, clusters and order; empty if it can."""
    if tiling.cluster == 1:
        return "its channels are divided among the blocks of a cluster, of which there must be several"
    if tiling.stages < 1:
        return "its input goes through shared memory, which takes at least one stage"
    if tiling.listed:
        return "its columns cannot be listed"
    if tiling.order != "group":
        return "its blocks have no other order"
    return "" if tiling.form == "rolled" else "a full template has no clusters"


@dataclass(frozen=True)
class Tile:
    """One chunk of channels of a block's input in shared memory: [image][channels / 4][row][column][4], with pads."""

    rows: int
    columns: int
    image_words: int
    stage_words: int
    pointers: int
    """Per thread: a place of an image each, for all channels."""

    @property
    def plane(self) -> int:
        """Places of a channel."""
        return self.rows * self.columns


def tile_of(layer: TiledConvolution) -> Tile:
    """What the blocks of a tiling have of their input."""
    tiling = layer.tiling
    rows, columns = input_extent(layer.geometry, tiling)
    image_words = rows * columns * tiling.chunk_channels
    pointers = -(-tiling.images * rows * columns // layer.threads)
    return Tile(rows, columns, image_words, tiling.images * image_words, pointers)


def is_refilled(layer: TiledConvolution) -> bool:
    """Whether a block's chunks do not all fit at once: then copies go on between its multiply-adds."""
    return layer.tiling.stages <= layer.streams.chunks


def shared_words(layer: TiledConvolution) -> int:
    """Chunks, or afterwards the sums of a block; without its gates."""
    stages = min(layer.tiling.stages, layer.streams.chunks)
    return max(stages * tile_of(layer).stage_words, layer.tiling.rows * layer.sums * layer.threads)


def launch_of(layer: TiledConvolution, part: Part | None = None) -> Launch:
    """Tiles, images, streams: those of a cluster are neighbours on z."""
    spec = layer.spec
    down, across = layer.tiles
    streams = layer.streams.count if part is None else part.end - part.first
    return Launch(
        kernel=ENTRY,
        grid=(GridSize(down * across), GridSize(images=layer.tiling.images), GridSize(streams)),
        block=(layer.threads, 1, 1),
        shared_bytes=4 * with_gates(layer, shared_words(layer)),
        arguments=(*tensors_of(spec), *numbers_of(spec)),
        data_type=spec.data_type,
        output_step=prod(spec.output_shape),
        input_step=prod(spec.input_shape) if is_bounded(spec) else None,
    )


def block_region(layer: TiledConvolution, block: tuple[int, int, int]) -> Region:
    """What the block with this tile, number of images and stream stores; its images may reach beyond the batch."""
    spec, tiling = layer.spec, layer.tiling
    tile, image, number = block
    _, across = layer.tiles
    kernel = layer.streams.first_kernel(number)
    row, column = tile // across * tiling.tile_height * tiling.rows, tile % across * tiling.tile_width
    return Region(
        slice(image * tiling.images, (image + 1) * tiling.images),
        slice(min(kernel, spec.output_channels), min(kernel + layer.streams.stored_kernels, spec.output_channels)),
        slice(row, min(row + tiling.tile_height * tiling.rows, spec.output_height)),
        slice(column, min(column + tiling.tile_width, spec.output_width)),
    )


def sources(layer: TiledConvolution) -> dict[str, str]:
    """The generated headers that cluster_conv2d.cu includes."""
    spec, geometry, tile = layer.spec, layer.geometry, tile_of(layer)
    values: dict[str, int | str] = {
        "LOOPED": 0,
        "EDGES": 0,
        "IMAGES": layer.tiling.images,
        "SHARE_CHANNELS": layer.streams.channels,
        "STORED_KERNELS": layer.streams.stored_kernels,
        "HEIGHT": geometry.height,
        "WIDTH": geometry.width,
        "STRIDE_Y": geometry.stride[0],
        "STRIDE_X": geometry.stride[1],
        "STEP_Y": geometry.step[0],
        "STEP_X": geometry.step[1],
        "PAD_TOP": f"({geometry.pad_top})",
        "PAD_LEFT": f"({geometry.pad_left})",
        "OUTPUT_HEIGHT": spec.output_height,
        "OUTPUT_WIDTH": spec.output_width,
        "TILES_X": layer.tiles[1],
        "CHANNEL_STEP": geometry.channel_step,
        "IMAGE_ELEMENTS": geometry.image_elements,
        "ROW_PLACES": tile.columns,
        "PLANE": tile.plane,
        "IMAGE_WORDS": tile.image_words,
        "STAGE": tile.stage_words,
        "POINTERS": tile.pointers,
        "PAIR_IMAGES": 1,
        **gate_parameters(layer, shared_words(layer)),
    }
    return {
        "parameters.h": weight_stream.parameters(layer, values),
        "body.h": weight_stream.rolled_body(layer, _input, _loads),
        "accumulate.h": "",
        "epilogue.h": weight_stream.rolled_epilogue(list(_stores(layer))),
    }


def _input(tap: Tap) -> tuple[str, str]:
    return f"x{tap.kernel_column}", str(tap.channel % QUAD)


def _loads(statement: Sequence[Tap]) -> str:
    """The inputs of a statement: four channels at once, those of each column of the kernel."""
    return "".join(
        f"float x{tap.kernel_column}[{QUAD}]; LOAD_QUAD(x{tap.kernel_column}, "
        f"{tap.channel // QUAD} * PLANE + {tap.row} * ROW_PLACES + {tap.column})\n"
        for tap in statement
        if tap.channel % QUAD == 0
    )


def _stores(layer: TiledConvolution) -> Iterator[Store]:
    for p in range(layer.tiling.rows):
        for k in range(layer.streams.stored_kernels):
            yield Store(p, k, f"IN_RANGE({p})", 0, f"{p} * OUTPUT_WIDTH + {k} * OUTPUT_PLANE")


def workload(layer: TiledConvolution) -> Workload:
    """The work of one instruction stream."""
    spec, geometry, tiling, streams, tile = layer.spec, layer.geometry, layer.tiling, layer.streams, tile_of(layer)
    taps = geometry.kernel_height * geometry.kernel_width
    used_rows = min(
        (tiling.rows - 1) * geometry.tile_stride[0] + geometry.kernel_height, tiling.rows * geometry.kernel_height
    )
    sums, stored = tiling.rows * layer.sums, tiling.rows * streams.stored_kernels
    element = ELEMENT_BYTES[spec.data_type]
    outputs = spec.output_channels * spec.output_height * spec.output_width
    return Workload(
        streams=streams.count,
        threads=layer.threads,
        sums=sums,
        terms=sums * taps * streams.channels,
        inputs=used_rows * geometry.kernel_width * streams.channels // QUAD,
        pointers=tile.pointers,
        copies=tile.pointers * streams.channels,
        chunks=streams.chunks,
        stores=exchange_instructions(sums, tiling.cluster) + stored * (1 + added_instructions(spec.epilogue)),
        slots=sums * taps * tiling.chunk_channels,
        results=sums * used_rows * tiling.chunk_channels // QUAD,
        tile_bytes=streams.channels * tiling.images * tile.rows * (tile.columns * element * geometry.step[1] + 28),
        input_bytes=element * geometry.image_elements,
        output_bytes=element * outputs,
        largest_offset_bytes=element * max(outputs, QUAD * geometry.channel_step),
        conflicts=float(QUAD),
        prepared=used_rows * streams.channels if prepares_inputs(spec) else 0,
        gate_loads=gate_loads(layer),
        loop_instructions=LOOP_INSTRUCTIONS * tile.pointers if is_refilled(layer) else 1.0,
    )


def candidates(layer: LoweredConvolution) -> Iterator[Tiling]:
    """Candidate tilings in a fixed order: all chunks of a block in shared memory at once, or three in flight."""
    geometry = layer.geometry
    for width, height, images in _blocks(geometry):
        for cluster in CLUSTERS:
            share, rest = divmod(geometry.channels, cluster)
            for outputs in GROUP_OUTPUTS if rest == 0 and share % QUAD == 0 else ():
                if outputs % cluster or outputs >= geometry.output_channels + cluster:
                    continue
                chunks = sorted({min(chunk, share) for chunk in CHUNKS if share % min(chunk, share) == 0})
                for chunk in chunks:
                    count = share // chunk
                    every = Tiling(
                        "cluster_conv2d", width, height, 1, outputs, chunk, count + 1, images=images, cluster=cluster
                    )
                    yield every
                    if count > REFILLED_STAGES:
                        yield replace(every, stages=REFILLED_STAGES)


def _blocks(geometry: Geometry) -> Iterator[tuple[int, int, int]]:
    """Width, height and images of a block: parts of a map, all of it, or several small ones."""
    height, width = geometry.positions_height, geometry.positions_width
    if geometry.is_pointwise:
        tiles = [(-(-width // n), 1) for n in range(1, min(MOST_TILES, -(-width // LEAST_THREADS)) + 1)]
    else:
        tiles = [(width, -(-height // n)) for n in range(1, MOST_TILES // 2 + 1)]
    for tile_width, tile_height in dict.fromkeys(tiles):
        for images in (1, 2, 4, 8) if (tile_width, tile_height) == (width, height) else (1,):
            if tile_width * tile_height * images <= MOST_THREADS:
                yield tile_width, tile_height, images
