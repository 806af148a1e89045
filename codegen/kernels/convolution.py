"""Parts that several kernels of convolutions share: launches, the regions of blocks, macros of the map."""

from __future__ import annotations

from math import prod

from codegen.ir.epilogue import POOL_STRIDE
from codegen.ir.launch import GridSize, Launch, numbers_of, tensors_of
from codegen.ir.layer_spec import is_bounded, is_pooled
from codegen.ir.tiling import Part
from codegen.kernels.lowering import TiledConvolution
from codegen.kernels.output_region import Region


def staged_launch(layer: TiledConvolution, entry: str, shared_bytes: int, part: Part | None) -> Launch:
    """Tiles, images, streams: those of a cluster are neighbours on z, and the K group is slowest, so that all
    multiprocessors follow one stream at a time.
    """
    spec = layer.spec
    down, across = layer.tiles
    streams = layer.streams.count if part is None else part.end - part.first
    return Launch(
        kernel=entry,
        grid=(
            GridSize(down * across),
            GridSize(images=layer.tiling.images),
            GridSize(streams // layer.tiling.block_groups),
        ),
        block=(layer.threads, 1, 1),
        shared_bytes=shared_bytes,
        arguments=(*tensors_of(spec), *numbers_of(spec)),
        data_type=spec.data_type,
        output_step=prod(spec.output_shape),
        input_step=prod(spec.input_shape) if is_bounded(spec) else None,
        waits=layer.tiling.waits,
    )


def block_region(layer: TiledConvolution, block: tuple[int, int, int]) -> Region:
    """The outputs of the block with this tile, number of images and stream; its images may reach beyond the batch."""
    spec, geometry, images, streams = layer.spec, layer.geometry, layer.tiling.images, layer.streams
    tile, image, stream = block
    _, across = layer.tiles
    first = streams.first_output(stream)
    # A stream at the end of a span has fewer outputs than the others.
    end = (first // streams.span_outputs + 1) * streams.span_outputs
    window = POOL_STRIDE if is_pooled(spec) else 1
    rows, columns = layer.tile_steps
    columns *= layer.pairing.neighbours
    return Region(
        slice(image * images, (image + 1) * images),
        slice(first, max(first, min(first + streams.stored_outputs, end, spec.output_channels))),
        _outputs(tile // across, rows // window, geometry.phases[0], geometry.crop[0], spec.output_height),
        _outputs(tile % across, columns // window, geometry.phases[1], geometry.crop[1], spec.output_width),
    )


def _outputs(tile: int, positions: int, phases: int, crop: int, outputs: int) -> slice:
    start = tile * positions * phases - crop
    return slice(max(start, 0), min(start + positions * phases, outputs))


def map_parameters(layer: TiledConvolution) -> dict[str, int | str]:
    """The macros of a layer's map that all kernels of convolutions have."""
    spec, geometry = layer.spec, layer.geometry
    return {
        "HEIGHT": geometry.height,
        "WIDTH": geometry.width,
        "STRIDE_Y": geometry.stride[0],
        "STRIDE_X": geometry.stride[1],
        "STEP_Y": geometry.step[0],
        "STEP_X": geometry.step[1],
        "PAD_TOP": f"({geometry.pad_top})",
        "PAD_LEFT": f"({geometry.pad_left})",
        "OUTPUT_HEIGHT": spec.output_height,
        "OUTPUT_WIDTH": spec.output_width // layer.pairing.neighbours,
        "TILES_X": layer.tiles[1],
        "CHANNEL_STEP": geometry.channel_step,
        "IMAGE_ELEMENTS": geometry.image_elements,
    }


def used_rows(layer: TiledConvolution) -> int:
    """Input rows of a channel that a thread reads."""
    geometry, rows = layer.geometry, layer.tiling.rows
    return min((rows - 1) * geometry.tile_stride[0] + geometry.kernel_height, rows * geometry.kernel_height)
