"""Candidate blocks of conv2d, and candidate sizes of its K groups and chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from codegen.ir.epilogue import POOL_STRIDE
from codegen.kernels.geometry import Geometry

CLUSTER_IMAGES = (32, 16, 8, 4, 2)
"""Images of a block that has whole maps."""
CLUSTER_PARTS = (2, 4)
"""Parts of a map too large for a block; a block then has one part of two images."""
CLUSTER_ROWS = (2, 3, 4, 7)
"""Parts, one below another, of any map whose filter has several rows."""
CLUSTER_THREADS = (64, 1024)
"""Least and most threads of a block."""
LARGE_BLOCK_THREADS = 256
"""Least threads of a block in a cluster of float32 that may have more than 48 KB of shared memory by prediction."""
SPLIT_GROUPS = (8, 16, 24, 32, 40, 48, 64)
"""Output channels of a K group of float32 with channels divided over a cluster."""
SPLIT_THREADS, SPLIT_TILES = (32, 1024), 16
"""Least threads of a block of a pointwise layer with them, most threads of any block; most tiles of a map."""


def paired_blocks(geometry: Geometry) -> Iterator[tuple[int, int, int, int]]:
    """Blocks of one image, whose threads have two columns, and blocks whose threads have two images."""
    for width, height, rows, images in blocks(geometry, -(-geometry.positions_width // 2)):
        if images == 1:
            yield width, height, rows, 1
    for width, height, rows, images in blocks(geometry, geometry.positions_width):
        yield width, height, rows, 2 * images


def blocks(geometry: Geometry, width: int) -> Iterator[tuple[int, int, int, int]]:
    """Width, height, rows of a thread and images of a block, of maps this wide; up to 1024 threads."""
    height = geometry.positions_height
    if geometry.is_pointwise:
        widths, heights, rows_choices = {64, 128, 256, 512}, {1}, [1]
    else:
        widths, heights, rows_choices = {8, 16, 64}, {1, 2, 4, 7, 8, 14, 16, min(height, 32)}, [1, 2]
    widths = {min(width, each) for each in (*widths, 32)} | {-(-width // 2), width}
    if geometry.overlap:
        widths, heights = _of_windows(geometry, widths | {width // 4}), _of_windows(geometry, heights)
    for tile_width in sorted(widths):
        for tile_height in sorted(heights):
            if tile_width * tile_height < 32 and tile_height < height:
                continue
            for rows in rows_choices:
                if tile_height * rows >= height + max(tile_height, rows):
                    continue
                whole = tile_width >= width and tile_height * rows >= height
                for images in (1, 2, 4, 8, 16, 32) if whole else (1,):
                    if tile_width * tile_height * images <= 1024:
                        yield tile_width, tile_height, rows, images


def _of_windows(geometry: Geometry, sizes: set[int]) -> set[int]:
    """Sizes of tiles near these that have whole windows, with the positions that neighbouring tiles share."""
    return {size // POOL_STRIDE * POOL_STRIDE + geometry.overlap for size in sizes if size >= POOL_STRIDE}


def divisions(geometry: Geometry) -> Iterator[tuple[int, int]]:
    """Output channels of a K group and channels of a chunk."""
    shares = (1, 2, 3, 4, 6, 8, 11, 12, 16, 22, 32, 64, geometry.group_outputs)
    chunks = (4, 8, 16, 32) if geometry.taps == 1 else (1, 2, 4, 8, 16)
    for outputs in sorted({-(-geometry.group_outputs // share) for share in shares}):
        for channels in sorted({min(geometry.group_channels, chunk) for chunk in chunks}):
            yield outputs, channels
    for groups in (2, 4, 8, 16, 32):
        if geometry.groups % groups == 0 and geometry.groups > 1:
            yield groups * geometry.group_outputs, groups * geometry.group_channels


def cluster_blocks(geometry: Geometry) -> Iterator[tuple[int, int, int]]:
    """Width, height and images of a block of a cluster; lanes of one image pair columns, not in 1x1 convolutions."""
    width, height = geometry.positions_width, geometry.positions_height
    least = 2 // geometry.neighbours
    whole = [(width, height, images) for images in dict.fromkeys((*CLUSTER_IMAGES, least))]
    parts = []
    if geometry.kernel_height > 1:
        rows = dict.fromkeys(-(-height // n) for n in CLUSTER_ROWS)
        parts = [(width, each, 2) for each in rows] + [(-(-width // 2), each, 1) for each in (height, *rows)]
    elif width * height > CLUSTER_THREADS[1]:
        parts = [(-(-width // n), 1, least) if height == 1 else (width, -(-height // n), least) for n in CLUSTER_PARTS]
    for block in (*whole, *parts):
        if CLUSTER_THREADS[0] <= math.prod(block) // (1 if block[2] == 1 else least) <= CLUSTER_THREADS[1]:
            yield block


def split_blocks(geometry: Geometry) -> Iterator[tuple[int, int, int]]:
    """Width, height and images of a block of float32 in a cluster: parts of a map, all of it, or several small ones."""
    height, width = geometry.positions_height, geometry.positions_width
    if geometry.is_pointwise:
        tiles = [(-(-width // n), 1) for n in range(1, min(SPLIT_TILES, -(-width // SPLIT_THREADS[0])) + 1)]
    else:
        tiles = [(width, -(-height // n)) for n in range(1, SPLIT_TILES // 2 + 1)]
    for tile_width, tile_height in dict.fromkeys(tiles):
        for images in (1, 2, 4, 8) if (tile_width, tile_height) == (width, height) else (1,):
            if tile_width * tile_height * images <= SPLIT_THREADS[1]:
                yield tile_width, tile_height, images
