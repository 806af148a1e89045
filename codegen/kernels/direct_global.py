"""1x1 convolutions of few weights, whose inputs pass no shared memory: the generated parts of direct_global.cu."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from codegen.ir.launch import GridSize, Launch, tensors_of
from codegen.ir.layer_spec import Conv2d, LayerSpec, is_bounded, is_gated
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import weight_stream
from codegen.kernels.epilogue_ptx import added_instructions
from codegen.kernels.geometry import Geometry
from codegen.kernels.lowering import LoweredConvolution, TiledConvolution
from codegen.kernels.output_region import Region
from codegen.kernels.weight_stream import Store
from codegen.kernels.workload import Work

KERNEL = "unstaged"
SOURCE = "direct_global.cu"
REACH_BYTES = 2**23
"""What an address in machine code may add to a register: the channels of an image lie no further apart."""
LISTED_BLOCKS = 264
"""Blocks of a kernel that computes listed columns, about: two for each multiprocessor of an H200."""


def applies(spec: LayerSpec, geometry: Geometry) -> bool:
    """Whether there is such a kernel for a layer."""
    return (
        isinstance(spec, Conv2d)
        and spec.data_type == "float32"
        and geometry.is_pointwise
        and geometry.groups == geometry.height == geometry.patch_rows == 1
        and not is_bounded(spec)
        and not is_gated(spec)
        and 4 * geometry.width * max(geometry.channels, geometry.output_channels) <= REACH_BYTES
    )


def launch_of(layer: TiledConvolution, part: Part | None = None) -> Launch:
    """Columns, images, K groups; of listed columns as many blocks as the GPU runs at once."""
    spec, tiling = layer.spec, layer.tiling
    groups = layer.streams.count if part is None else part.end - part.first
    across = GridSize(max(1, LISTED_BLOCKS // layer.streams.count)) if tiling.listed else GridSize(layer.tiles[1])
    return Launch(
        kernel=KERNEL,
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


def block_region(layer: TiledConvolution, block: tuple[int, int, int]) -> Region:
    """What the block with these columns, image and K group computes."""
    across, image, group = block
    size, width = layer.tiling.group_outputs, layer.tiling.tile_width
    return Region(
        slice(image, image + 1),
        slice(group * size, min((group + 1) * size, layer.spec.output_channels)),
        slice(0, 1),
        slice(across * width, min((across + 1) * width, layer.geometry.width)),
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


def work(layer: TiledConvolution) -> Work:
    """What one stream does."""
    spec, tiling, streams = layer.spec, layer.tiling, layer.streams
    sums, channels, width = tiling.group_outputs, layer.geometry.channels, layer.geometry.width
    return Work(
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
        unstaged=True,
    )


def candidates(layer: LoweredConvolution) -> Iterator[Tiling]:
    """Tilings worth a look, in a fixed order, whether they fit or not."""
    geometry = layer.geometry
    for width in (32, 64, 128, 256):
        if width <= max(32, geometry.width):
            for kernels in sorted({min(geometry.output_channels, size) for size in (8, 16, 32, 64, 96, 128)}):
                yield Tiling(width, 1, 1, kernels, min(geometry.channels, 32), stages=0)
