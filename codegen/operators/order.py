"""The order in which a convolution's blocks begin: the other way round than order.cuh."""

from __future__ import annotations

from codegen.operators.lowered import AnyTiled


def order_parameters(layer: AnyTiled) -> dict[str, int | str]:
    """The macros of order.cuh."""
    down, across = layer.tiles
    return {"BY_PLACE": int(layer.tiling.order == "place"), "GROUPS": layer.streams.count, "TILES": down * across}


def launched_block(layer: AnyTiled, block: tuple[int, int, int], grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Which block of the grid has this tile, these images and this K group."""
    if layer.tiling.order == "group":
        return block
    tiles, images, groups = grid
    tile, image, group = block
    number = group + groups * (tile + tiles * image)
    return number % tiles, number // tiles % images, number // (tiles * images)
