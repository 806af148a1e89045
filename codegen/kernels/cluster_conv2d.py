"""Convolutions whose channels are split over the blocks of a cluster: the generated parts of cluster_conv2d.cu."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from codegen.ir.dtypes import ELEMENT_BYTES
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import Conv2d, LayerSpec, is_pooled, prepares_inputs
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import weight_stream
from codegen.kernels.candidate_blocks import SPLIT_GROUPS, split_blocks
from codegen.kernels.channel_gates import gate_loads, gate_parameters, with_gates
from codegen.kernels.convolution import block_region, map_parameters, staged_launch, used_rows
from codegen.kernels.epilogue_ptx import added_instructions
from codegen.kernels.geometry import Geometry
from codegen.kernels.lowering import LoweredConvolution, TiledConvolution
from codegen.kernels.shared_input_tile import input_extent
from codegen.kernels.streams import QUAD
from codegen.kernels.weight_stream import Store, Tap
from codegen.kernels.workload import Workload, exchange_instructions, staged_refusal

__all__ = ["ENTRY", "SOURCE", "block_region", "launch_of", "refusal", "sources", "unsuitable", "workload"]

ENTRY = "stationary"
SOURCE = "cluster_conv2d.cu"

CLUSTERS = (8, 4, 2)
"""Blocks of a cluster: every GPU that has clusters takes eight."""
CHUNKS = (8, 16, 32, 64)
REFILLED_STAGES = 3
"""Chunks in flight where they are not all there at once."""
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
    if reason := staged_refusal(tiling):
        return reason
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
        """Places of a channel in shared memory."""
        return self.rows * self.columns


def tile_of(layer: TiledConvolution) -> Tile:
    """The input tile of a block."""
    tiling = layer.tiling
    rows, columns = input_extent(layer.geometry, tiling)
    image_words = rows * columns * tiling.chunk_channels
    pointers = -(-tiling.images * rows * columns // layer.threads)
    return Tile(rows, columns, image_words, tiling.images * image_words, pointers)


def is_refilled(layer: TiledConvolution) -> bool:
    """Whether a block's chunks do not all fit at once: then it copies between its multiply-adds."""
    return layer.tiling.stages <= layer.streams.chunks


def shared_words(layer: TiledConvolution) -> int:
    """Chunks, or afterwards the sums of a block; without its gates."""
    stages = min(layer.tiling.stages, layer.streams.chunks)
    return max(stages * tile_of(layer).stage_words, layer.tiling.rows * layer.sums * layer.threads)


def launch_of(layer: TiledConvolution, part: Part | None = None) -> Launch:
    """The launch of the kernel of a part of the layer, or of the whole layer."""
    return staged_launch(layer, ENTRY, 4 * with_gates(layer, shared_words(layer)), part)


def sources(layer: TiledConvolution) -> dict[str, str]:
    """The generated headers that cluster_conv2d.cu includes."""
    tile = tile_of(layer)
    values: dict[str, int | str] = {
        "LOOPED": 0,
        "QUADS": 1,
        "EDGES": 0,
        "IMAGES": layer.tiling.images,
        "SHARE_CHANNELS": layer.streams.channels,
        "STORED_OUTPUTS": layer.streams.stored_outputs,
        **map_parameters(layer),
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
    """The loads of a statement's inputs: four channels at once, for each column of the filter."""
    return "".join(
        f"float x{tap.kernel_column}[{QUAD}]; LOAD_QUAD(x{tap.kernel_column}, "
        f"{tap.channel // QUAD} * PLANE + {tap.row} * ROW_PLACES + {tap.column})\n"
        for tap in statement
        if tap.channel % QUAD == 0
    )


def _stores(layer: TiledConvolution) -> Iterator[Store]:
    for p in range(layer.tiling.rows):
        for k in range(layer.streams.stored_outputs):
            yield Store(p, k, f"IN_RANGE({p})", 0, f"{p} * OUTPUT_WIDTH + {k} * OUTPUT_PLANE")


def workload(layer: TiledConvolution) -> Workload:
    """The work of one instruction stream."""
    spec, geometry, tiling, streams, tile = layer.spec, layer.geometry, layer.tiling, layer.streams, tile_of(layer)
    taps = geometry.taps
    rows = used_rows(layer)
    sums, stored = tiling.rows * layer.sums, tiling.rows * streams.stored_outputs
    element = ELEMENT_BYTES[spec.data_type]
    outputs = spec.output_channels * spec.output_height * spec.output_width
    return Workload(
        streams=streams.count,
        threads=layer.threads,
        sums=sums,
        terms=sums * taps * streams.channels,
        inputs=rows * geometry.kernel_width * streams.channels // QUAD,
        pointers=tile.pointers,
        copies=tile.pointers * streams.channels,
        chunks=streams.chunks,
        stores=exchange_instructions(sums, tiling.cluster) + stored * (1 + added_instructions(spec.epilogue)),
        slots=sums * taps * tiling.chunk_channels,
        results=sums * rows * tiling.chunk_channels // QUAD,
        tile_bytes=streams.channels * tiling.images * tile.rows * (tile.columns * element * geometry.step[1] + 28),
        input_bytes=element * geometry.image_elements,
        output_bytes=element * outputs,
        largest_offset_bytes=element * max(outputs, QUAD * geometry.channel_step),
        conflicts=float(QUAD),
        prepared=rows * streams.channels if prepares_inputs(spec) else 0,
        gate_loads=gate_loads(layer),
        loop_instructions=LOOP_INSTRUCTIONS * tile.pointers if is_refilled(layer) else 1.0,
    )


def candidates(layer: LoweredConvolution) -> Iterator[Tiling]:
    """Candidate tilings in a fixed order: all chunks of a block in shared memory at once, or three in flight."""
    geometry = layer.geometry
    for width, height, images in split_blocks(geometry):
        for cluster in CLUSTERS:
            share, rest = divmod(geometry.channels, cluster)
            for outputs in SPLIT_GROUPS if rest == 0 and share % QUAD == 0 else ():
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
