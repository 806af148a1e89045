"""1x1 convolutions of few weights, whose inputs pass no shared memory: the generated parts of direct_global.cu."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from codegen.ir.launch import GridSize, Launch, tensors_of
from codegen.ir.layer_spec import Conv2d, LayerSpec, is_pooled, prepares_inputs
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import weight_stream
from codegen.kernels.convolution import block_region
from codegen.kernels.epilogue_ptx import added_instructions
from codegen.kernels.geometry import Geometry
from codegen.kernels.lowering import LoweredConvolution, TiledConvolution
from codegen.kernels.weight_stream import Store
from codegen.kernels.workload import Workload

__all__ = ["ENTRY", "SOURCE", "block_region", "launch_of", "refusal", "sources", "unsuitable", "workload"]

ENTRY = "unstaged"
SOURCE = "direct_global.cu"
REACH_BYTES = 2**23
"""Largest offset of an address in machine code: the channels of an image lie no further apart."""
LISTED_BLOCKS = 264
"""Blocks of a kernel of listed columns, about: two for each multiprocessor of an H200."""


def unsuitable(spec: LayerSpec, geometry: Geometry) -> str:
    """Why the kernel cannot compute a layer, whatever the tiling; empty if it can."""
    if not isinstance(spec, Conv2d) or not geometry.is_pointwise or geometry.groups > 1:
        return "it is no 1x1 convolution with stride 1, no padding and one group"
    if spec.data_type != "float32":
        return f"it computes float32, not {spec.data_type}"
    if prepares_inputs(spec) or is_pooled(spec) or geometry.patch_rows > 1:
        return "it computes no input bounds, no gates and no pool"
    if 4 * geometry.width * max(geometry.channels, geometry.output_channels) > REACH_BYTES:
        return f"its channels lie more than {REACH_BYTES} bytes apart in memory"
    return ""


def refusal(_layer: LoweredConvolution, tiling: Tiling) -> str:
    """Why the kernel cannot have this combination of stages, clusters and order; empty if it can."""
    if tiling.stages:
        return "its input does not go through shared memory: it has no stages"
    if tiling.cluster > 1:
        return "its channels are not divided over clusters"
    if tiling.images > 1:
        return "a block has one image"
    if tiling.order != "group":
        return "its blocks have no other order"
    return "" if tiling.form == "rolled" else "it has no full template"


def launch_of(layer: TiledConvolution, part: Part | None = None) -> Launch:
    """Columns, images, K groups; for listed columns as many blocks as the GPU runs at once."""
    spec, tiling = layer.spec, layer.tiling
    groups = layer.streams.count if part is None else part.end - part.first
    across = GridSize(max(1, LISTED_BLOCKS // layer.streams.count)) if tiling.listed else GridSize(layer.tiles[1])
    return Launch(
        kernel=ENTRY,
        grid=(across, GridSize() if tiling.listed else GridSize(images=1), GridSize(groups)),
        block=(tiling.tile_width, 1, 1),
        shared_bytes=0,
        arguments=(
            *tensors_of(spec),
            "images",
            "output_step",
            *(("count", "places", "marks") if tiling.listed else ()),
        ),
        data_type=spec.data_type,
        output_step=prod(spec.output_shape),
    )


def sources(layer: TiledConvolution) -> dict[str, str]:
    """The generated headers that direct_global.cu includes."""
    return {
        "parameters.h": weight_stream.parameters(
            layer, {"WIDTH": layer.geometry.width, "LISTED": int(layer.tiling.listed), "STAGE": 0}
        ),
        "copies.h": "",
        "body.h": weight_stream.rolled_body(layer, lambda tap: ("in", f"{tap.channel} * WIDTH")),
        "epilogue.h": weight_stream.rolled_epilogue(
            [Store(0, k, "inside", 0, f"{k} * WIDTH") for k in range(layer.tiling.group_outputs)]
        ),
    }


def workload(layer: TiledConvolution) -> Workload:
    """The work of one instruction stream."""
    spec, tiling, streams = layer.spec, layer.tiling, layer.streams
    sums, channels, width = tiling.group_outputs, layer.geometry.channels, layer.geometry.width
    return Workload(
        streams=streams.count,
        threads=tiling.tile_width,
        sums=sums,
        terms=sums * channels,
        inputs=channels,
        pointers=1,
        copies=0,
        chunks=1,
        stores=sums * (1 + added_instructions(spec.epilogue)),
        slots=sums * tiling.chunk_channels,
        results=sums * -(-tiling.chunk_channels // weight_stream.POINTWISE_CHANNELS),
        tile_bytes=0,
        input_bytes=4 * channels * width,
        output_bytes=4 * spec.output_channels * width,
        largest_offset_bytes=4 * width * max(channels, spec.output_channels),
        conflicts=1,
    )


def candidates(layer: LoweredConvolution) -> Iterator[Tiling]:
    """Candidate tilings in a fixed order, whether they fit or not."""
    geometry = layer.geometry
    for width in (32, 64, 128, 256):
        if width <= max(32, geometry.width):
            for outputs in sorted({min(geometry.output_channels, size) for size in (8, 16, 32, 64, 96, 128)}):
                yield Tiling("direct_global", width, 1, 1, outputs, min(geometry.channels, 32), stages=0)
