"""Partially written memory sectors: if a warp writes a part of 32 bytes, the rest is read first."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from codegen.ir.dtypes import ELEMENT_BYTES
from codegen.ir.layer_spec import Linear, is_pooled
from codegen.kernels import AnyTiled

SECTOR_BYTES = 32


def split_sectors(layer: AnyTiled) -> float:
    """Partial writes of sectors per image of a convolution, over all its channels; 0 for other layers."""
    spec, geometry, tiling, pair = layer.spec, layer.geometry, layer.tiling, layer.pairing
    if isinstance(spec, Linear) or is_pooled(spec):
        return 0.0
    _, height, width = spec.output_shape
    element = ELEMENT_BYTES[spec.data_type]
    # A thread writes the phases of a position one after the other: as if they were one.
    column = element * geometry.phases[1] * pair.neighbours
    row = element * width * geometry.phases[0]
    down, across = layer.tiles
    # Where maps and tiles begin: at any multiple of this.
    begin = math.gcd(SECTOR_BYTES, element * height * width)
    if across > 1:
        begin = math.gcd(begin, tiling.tile_width * column)
    if down > 1:
        begin = math.gcd(begin, tiling.tile_height * tiling.rows * row)
    block = (layer.word_images, tiling.tile_height, tiling.tile_width)
    outputs = element * height * width / (column * math.prod(block))
    return _split(block, (tiling.rows * row, column), begin) * outputs * spec.output_channels


@lru_cache(maxsize=4096)
def _split(block: tuple[int, int, int], steps: tuple[int, int], begin: int) -> float:
    """Partial writes of sectors by a block's threads [images, rows, columns], one output each, averaged over its start.

    `steps`: bytes from a row and from a column to the next.
    """
    image, row, column = np.indices(block, dtype=np.int64).reshape(3, -1)
    warp = np.arange(image.size) // 32
    place = row * steps[0] + column * steps[1]
    apart = (warp * block[0] + image) * (place.max() // SECTOR_BYTES + 2)
    count = 0
    for first in range(0, SECTOR_BYTES, begin):
        # Lanes of a sector are neighbours.
        ends = np.flatnonzero(np.diff(apart + (first + place) // SECTOR_BYTES, append=-1))
        count += int(np.count_nonzero(np.diff(ends, prepend=-1) * steps[1] < SECTOR_BYTES))
    return count * begin / SECTOR_BYTES
