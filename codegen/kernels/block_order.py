"""The order in which the blocks of conv2d begin: the inverse of block_order.cuh."""

from __future__ import annotations

from codegen.kernels.lowering import AnyTiled


def order_parameters(layer: AnyTiled) -> dict[str, int | str]:
    """The macros of block_order.cuh."""
    down, across = layer.tiles
    groups = layer.streams.count // (layer.tiling.cluster * layer.tiling.block_groups)
    return {"BY_PLACE": int(layer.tiling.order == "place"), "GROUPS": groups, "TILES": down * across}


def launched_block(layer: AnyTiled, block: tuple[int, int, int], grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """The block of the grid that computes this tile, these images and this K group."""
    if layer.tiling.order == "group":
        return block
    (tiles, images, groups), (tile, image, group) = grid, block
    clusters, rank = groups // layer.tiling.cluster, group % layer.tiling.cluster
    number = group // layer.tiling.cluster + clusters * (tile + tiles * image)
    return number % tiles, number // tiles % images, number // (tiles * images) * layer.tiling.cluster + rank
