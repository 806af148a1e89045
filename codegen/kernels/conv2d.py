"""Direct 2-D convolution, transposed or not: the generated parts of conv2d.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from codegen.ir.dtypes import ELEMENT_BYTES
from codegen.ir.epilogue import POOL_STRIDE
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear, is_pooled, prepares_inputs
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import weight_stream
from codegen.kernels.block_order import order_parameters
from codegen.kernels.candidate_blocks import (
    LARGE_BLOCK_THREADS,
    SPLIT_GROUPS,
    blocks,
    cluster_blocks,
    divisions,
    paired_blocks,
    split_blocks,
)
from codegen.kernels.channel_gates import gate_loads, gate_parameters, with_gates
from codegen.kernels.convolution import block_region, map_parameters, staged_launch, used_rows
from codegen.kernels.geometry import Geometry
from codegen.kernels.lowering import LoweredConvolution, TiledConvolution
from codegen.kernels.max_pool import exchanged_by, pool_parameters, pooled_epilogue, stores_of, with_windows
from codegen.kernels.register_budget import carried, held, most_registers, resident_blocks, sum_registers
from codegen.kernels.shared_input_tile import BANKS, InputTile, input_extent, reads_beside
from codegen.kernels.weight_stream import Store, Tap
from codegen.kernels.workload import (
    ASYNCHRONOUS_COPY,
    SHARED_BYTES,
    Workload,
    average_conflicts,
    exchange_instructions,
    staged_refusal,
)

__all__ = ["ENTRY", "SOURCE", "block_region", "launch_of", "refusal", "sources", "unsuitable", "workload"]

ENTRY = "conv2d"
SOURCE = "conv2d.cu"
CLUSTERS = (2, 4, 8)
"""Blocks of a cluster."""
CLUSTER_GROUPS = (64, 48, 40, 32, 24, 16)
"""Output channels of a K group with clusters, in float16."""
CLUSTER_CHUNKS = (4, 8, 16, 32)
"""Channels of a chunk with clusters."""
POINT_GROUPS, POINT_CHUNKS = (96, 64, 48, 40, 32, 24, 16), (8, 16, 32, 64)
"""Output channels of a K group and channels of a chunk with clusters, of a 1x1 kernel in float16: each channel has few
multiply-adds, so that more of both pay."""
MOST_EXCHANGED = 512
"""Most sums of a position that the blocks of a cluster exchange in float16: 768 took 1.4 times as long."""


def unsuitable(spec: LayerSpec, _geometry: Geometry) -> str:
    """Why the kernel cannot compute a layer: it takes convolutions only, transposed ones included."""
    return "it is a linear layer" if isinstance(spec, Linear) else ""


def refusal(layer: LoweredConvolution, tiling: Tiling) -> str:
    """Why the kernel cannot have this combination of stages, clusters, groups and form; empty if it can."""
    if reason := staged_refusal(tiling):
        return reason
    if tiling.form == "full" and (tiling.cluster > 1 or tiling.block_groups > 1):
        return "a full template has neither clusters nor blocks of several K groups"
    if tiling.block_groups > 1 and (reason := groups_refusal(layer.spec, layer.geometry)):
        return reason
    return cluster_refusal(layer.spec, layer.geometry) if tiling.cluster > 1 else ""


def groups_refusal(spec: LayerSpec, geometry: Geometry) -> str:
    """Why several K groups of a layer cannot share the input of a block; empty if they can."""
    if geometry.groups > 1:
        return "the K groups of a grouped convolution read different channels"
    if prepares_inputs(spec) or is_pooled(spec):
        return "layers with input bounds, gates or a pool have one K group in a block"
    return ""


def cluster_refusal(spec: LayerSpec, geometry: Geometry) -> str:
    """Why the channels of a layer cannot be divided among the blocks of a cluster by this kernel; empty if they can."""
    if spec.data_type == "bfloat16":
        return "it divides channels over clusters in float16 and float32, not in bfloat16"
    if not isinstance(spec, Conv2d):
        return "transposed convolutions are not divided over clusters"
    if geometry.groups > 1 or geometry.patch_rows > 1:
        return "channels of a grouped convolution or of a patch embedding are not divided over clusters"
    if prepares_inputs(spec) or is_pooled(spec):
        return "layers with input bounds, gates or a pool are not divided over clusters"
    return ""


def launch_of(layer: TiledConvolution, part: Part | None = None) -> Launch:
    """The launch of the kernel of a part of the layer, or of the whole layer."""
    return staged_launch(layer, ENTRY, _shared_bytes(layer, layer.tiling.stages), part)


def _shared_bytes(layer: TiledConvolution, stages: int) -> int:
    return 4 * with_gates(layer, _shared_words(layer, stages))


def _shared_words(layer: TiledConvolution, stages: int) -> int:
    """Chunks, or afterwards the sums that other threads or the other blocks of a cluster read; without gates."""
    exchanged = layer.tiling.rows * layer.sums * layer.threads if layer.tiling.cluster > 1 else 0
    return with_windows(layer, max(layer.input_tile.shared_words(stages), exchanged))


def sources(layer: TiledConvolution) -> dict[str, str]:
    """The generated headers that conv2d.cu includes."""
    stores = list(_stores(layer))
    if layer.tiling.form == "full":
        body, epilogue = "", weight_stream.full_streams(layer, stores, _address(layer))
    else:
        body = weight_stream.rolled_body(layer, _address(layer))
        words = _shared_words(layer, layer.tiling.stages)
        epilogue = (
            pooled_epilogue(layer, stores, words) if is_pooled(layer.spec) else weight_stream.rolled_epilogue(stores)
        )
    return {
        "parameters.h": _parameters(layer),
        "copies.h": _copy_lines(layer),
        "body.h": body,
        "accumulate.h": weight_stream.accumulate(layer),
        "epilogue.h": epilogue,
    }


def _address(layer: TiledConvolution) -> weight_stream.Address:
    tile, geometry = layer.input_tile, layer.geometry

    def address(tap: Tap) -> tuple[str, str]:
        edge = tile.edge(tap.row, tap.kernel_column)
        row, column = tap.row - geometry.pad_top + tile.rows_above, tap.column - geometry.pad_left * tile.whole_rows
        pointer = "in" if edge is None else f"edge[{edge}]"
        return pointer, f"{tap.channel} * CHANNEL_WORDS + ({row}) * ROW_WORDS + ({column})"

    return address


def _parameters(layer: TiledConvolution) -> str:
    spec, tiling, geometry, tile, pair = layer.spec, layer.tiling, layer.geometry, layer.input_tile, layer.pairing
    edges = [(edge.row or 0, edge.column * geometry.dilation[1]) for edge in tile.edges]
    values: dict[str, int | str] = {
        "LOOPED": 0,
        "IMAGES": tiling.images,
        "BLOCK_GROUPS": tiling.block_groups,
        "GROUP_THREADS": layer.group_threads,
        "SHARE_CHANNELS": layer.streams.channels,
        "STORED_OUTPUTS": layer.streams.stored_outputs,
        "RESIDENT_BLOCKS": resident_blocks(layer),
        "PAIR_IMAGES": pair.images,
        "PAIR_COLUMNS": pair.columns,
        "NEIGHBOURS": pair.neighbours,
        **map_parameters(layer),
        "PAD_TOP": f"({tile.rows_above})",
        "UP_Y": geometry.phases[0],
        "UP_X": geometry.phases[1],
        "CROP_Y": geometry.crop[0],
        "CROP_X": geometry.crop[1],
        "TILE_STEP_Y": layer.tile_steps[0],
        "TILE_STEP_X": layer.tile_steps[1],
        "WHOLE_ROWS": int(tile.whole_rows),
        "ROW_STEP": geometry.row_step,
        "PATCH_GAP": tile.patch_gap,
        "ROW_LENGTH": (geometry.channel_step * (tiling.chunk_channels if tile.merged else 1))
        if tile.whole_rows
        else geometry.width,
        "ROW_WORDS": tile.row_words,
        "CHANNEL_WORDS": tile.channel_words,
        "IMAGE_WORDS": tile.image_words,
        "STAGE": tile.stage_words,
        "MARGIN": tile.margin,
        "UNIT": tile.unit,
        "SPREAD": int(tile.spread),
        "FILLED": int(spec.data_type == "bfloat16" or (reads_beside(geometry) and not tile.merged)),
        "ROW_UNITS": tile.row_units,
        "CHANNEL_UNITS": tile.channel_units,
        "IMAGE_UNITS": tile.image_units,
        # In the order `place` ptxas then spills uniform registers, which the assembler does not know.
        "EVEN_COPIES": int(geometry.taps == 1 and tile.is_even and tiling.order != "place"),
        "POINTERS": tile.pointers,
        "HELD": held(layer),
        "ADVANCE": tiling.chunk_channels * geometry.channel_step,
        "JUMP": geometry.channel_jump,
        "JUMP_AFTER": geometry.patch_rows,
        "PAIR_OFFSET": geometry.image_elements if pair.images == 2 else tiling.tile_width * geometry.stride[1],
        "EDGES": len(tile.edges),
        "EDGE_STARTS": "{" + ", ".join(str(column - geometry.pad_left) for _, column in edges) + "}",
        "ROW_EDGES": int(any(edge.row is not None for edge in tile.edges)),
        "EDGE_ROWS": "{" + ", ".join(str(row - geometry.pad_top) for row, _ in edges) + "}",
        "ZERO_WORDS": tile.zero_words,
        "ZEROS_BEFORE": tile.zeros_before,
        **order_parameters(layer),
        **pool_parameters(layer),
        **gate_parameters(layer, _shared_words(layer, tiling.stages)),
    }
    return weight_stream.parameters(layer, values)


def _copy_lines(layer: TiledConvolution) -> str:
    tile = layer.input_tile
    channels = range(0, layer.tiling.chunk_channels, tile.pass_channels)
    return "".join(
        f"COPY({j}, {i * tile.pointers + j}, {c}, {c} * CHANNEL_STEP, {c} * CHANNEL_WORDS)\n"
        for i, c in enumerate(channels)
        for j in range(tile.pointers)
    )


def _stores(layer: TiledConvolution) -> Iterator[Store]:
    geometry, tiling, pair = layer.geometry, layer.tiling, layer.pairing
    up_y, up_x = geometry.phases
    window = POOL_STRIDE if is_pooled(layer.spec) else 1
    for p in range(tiling.rows):
        for q in range(pair.images * pair.columns):
            image, column = (q, 0) if pair.images == 2 else (0, q)
            for k in range(layer.streams.stored_outputs):
                for phase in range(geometry.phase_count):
                    down, across = p * up_y + phase // up_x, column * tiling.tile_width // window * up_x + phase % up_x
                    yield Store(
                        p * pair.images * pair.columns + q,
                        k * geometry.phase_count + phase,
                        f"IN_RANGE({image}, {down}, {across})",
                        image,
                        f"{down} * OUTPUT_WIDTH + {across} + {k} * OUTPUT_PLANE",
                    )


def workload(layer: TiledConvolution) -> Workload:
    """The work of one instruction stream."""
    spec, geometry, tiling, streams, tile, pair = (
        layer.spec,
        layer.geometry,
        layer.tiling,
        layer.streams,
        layer.input_tile,
        layer.pairing,
    )
    height, width = input_extent(geometry, tiling)
    group_outputs = min(tiling.group_outputs, geometry.group_outputs) if geometry.groups > 1 else tiling.group_outputs
    taps = geometry.taps
    rows = used_rows(layer)
    sums = tiling.rows * layer.sums
    outputs = spec.output_channels * spec.output_height * spec.output_width
    element = ELEMENT_BYTES[spec.data_type]
    word = element * pair.neighbours
    per_channel = tiling.rows * group_outputs * geometry.phase_count * taps
    return Workload(
        streams=streams.count,
        threads=layer.threads,
        sums=sum_registers(layer),
        terms=per_channel * streams.channels,
        inputs=rows * geometry.kernel_width * streams.channels // tile.vector,
        pointers=tile.pointers_held,
        copies=tile.copies * streams.chunks,
        chunks=streams.chunks,
        prepared=rows * geometry.kernel_width * streams.channels if prepares_inputs(spec) else 0,
        gate_loads=gate_loads(layer),
        stores=stores_of(layer, sums * pair.halves // streams.shares)
        + exchange_instructions(sums, tiling.cluster, pair.halves),
        slots=per_channel * tiling.chunk_channels,
        results=sums
        * rows
        * tiling.chunk_channels
        // (weight_stream.POINTWISE_CHANNELS if taps == tiling.rows == 1 else 1),
        tile_bytes=streams.channels * tiling.images * height * _row_bytes(geometry, tile, word * pair.columns, width),
        input_bytes=word * geometry.image_elements,
        output_bytes=element * outputs,
        largest_offset_bytes=element
        * max(
            pair.images * outputs,
            pair.neighbours
            * ((pair.images - 1) * geometry.image_elements + tiling.chunk_channels * geometry.channel_step),
        ),
        conflicts=_conflicts(layer),
        packed_sums=sums if layer.adds_up_in_float32 else 0,
        held=carried(layer),
        most_registers=most_registers(layer),
        copy_instructions=_copy_instructions(layer),
        exchanged=exchanged_by(layer, sums * pair.halves),
    )


def _copy_instructions(layer: TiledConvolution) -> float:
    """Instructions per copy of 16-bit elements through registers: zeros and a load per output, packing, a store."""
    if layer.spec.data_type == "float32" or layer.pairing.whole_words:
        return ASYNCHRONOUS_COPY
    return 1.5 + 2 * layer.pairing.halves + layer.input_tile.unit


def _row_bytes(geometry: Geometry, tile: InputTile, element: int, width: int) -> float:
    """Bytes read for a row of the tile: whole sectors of 32 bytes, at any position of which it may start."""
    if tile.whole_rows:
        return element * geometry.width
    return element * width * geometry.step[1] + 28


def _conflicts(layer: TiledConvolution) -> float:
    tiling, tile, (down, across) = layer.tiling, layer.input_tile, layer.geometry.tile_stride
    steps = (tile.image_words, tiling.rows * down * tile.row_words, across + tile.patch_gap)
    image_step, row_step, column_step = (step // tile.vector for step in steps)
    shape = (layer.word_images, tiling.tile_height, tiling.tile_width)
    return average_conflicts(shape, (image_step % BANKS, row_step % BANKS, column_step))


def candidates(layer: LoweredConvolution) -> Iterator[Tiling]:
    """Candidate tilings without clusters, in a fixed order, whether they fit or not."""
    geometry = layer.geometry
    paired = layer.spec.data_type == "float16" and geometry.neighbours == 1
    several = paired_blocks(geometry) if paired else blocks(geometry, geometry.positions_width)
    for width, height, rows, images in several:
        for outputs, channels in divisions(geometry):
            two = Tiling("conv2d", width, height, rows, outputs, channels, stages=2, images=images)
            yield two
            # Deeper where there is that much to fetch and the room; most so where a chunk is soon done.
            chunks, divided = -(-geometry.group_channels // channels), layer.tiled(two)
            depths = (8, 4, 3) if channels <= 2 else (4, 3)
            deepest = next((n for n in depths if _shared_bytes(divided, n) <= SHARED_BYTES and n <= chunks + 1), 2)
            if deepest > 2:
                yield replace(two, stages=deepest)


def cluster_candidates(layer: LoweredConvolution) -> Iterator[Tiling]:
    """Candidate tilings with clusters, whether they fit or not; as a rule the faster ones first."""
    geometry = layer.geometry
    if cluster_refusal(layer.spec, geometry):
        return
    if layer.spec.data_type == "float32":
        yield from _split_candidates(geometry)
        return
    groups, chunks_of = (POINT_GROUPS, POINT_CHUNKS) if geometry.taps == 1 else (CLUSTER_GROUPS, CLUSTER_CHUNKS)
    sizes = product(groups, list(cluster_blocks(geometry)), CLUSTERS, chunks_of)
    for outputs, (width, height, images), cluster, chunk in sizes:
        chunks, rest = divmod(geometry.channels, cluster * chunk)
        if chunks >= 2 and not rest and outputs * cluster <= MOST_EXCHANGED:
            yield Tiling("conv2d", width, height, 1, outputs, chunk, 2, images=images, cluster=cluster)


def _split_candidates(geometry: Geometry) -> Iterator[Tiling]:
    """Candidates with clusters in float32: three chunks in flight, whose copies pass no registers."""
    sizes = product(split_blocks(geometry), CLUSTERS, SPLIT_GROUPS, CLUSTER_CHUNKS)
    for (width, height, images), cluster, outputs, chunk in sizes:
        chunks, rest = divmod(geometry.channels, cluster * chunk)
        if width * height * images < LARGE_BLOCK_THREADS or rest:
            continue  # cluster_conv2d has fewer instructions
        if chunks and outputs % cluster == 0 and outputs < geometry.output_channels + cluster:
            yield Tiling("conv2d", width, height, 1, outputs, chunk, 3, images=images, cluster=cluster)


def last_resort(layer: LoweredConvolution) -> Iterator[Tiling]:
    """Tilings of one output channel at a time, for layers of which no candidate fits the limits."""
    geometry = layer.geometry
    width = min(geometry.positions_width, 32)
    for tile_width, tile_height in (
        (width, min(geometry.positions_height, max(1, 64 // width))),
        (min(width, 8), 1),
        (1, 1),
    ):
        if is_pooled(layer.spec):
            tile_width, tile_height = (
                -(-size // POOL_STRIDE) * POOL_STRIDE + geometry.overlap for size in (tile_width, tile_height)
            )
        yield Tiling("conv2d", tile_width, tile_height, 1, 1, 1, stages=2)
