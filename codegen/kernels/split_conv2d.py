"""Convolutions of float16 whose channels are split over the blocks of a cluster: tilings of conv2d.cu."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from codegen.ir.layer_spec import Conv2d, LayerSpec, is_pooled, prepares_inputs
from codegen.ir.tiling import Tiling
from codegen.kernels.conv2d import SOURCE, block_region, launch_of, sources, work
from codegen.kernels.geometry import Geometry
from codegen.kernels.lowering import LoweredConvolution

__all__ = ["SOURCE", "applies", "block_region", "candidates", "launch_of", "sources", "work"]

CLUSTERS = (2, 4, 8)
GROUP_KERNELS = (64, 32, 16)
CHUNKS = (4, 8, 16, 32)
IMAGES = (32, 16, 8, 4, 2)
"""Of a block that has whole maps."""
PARTS = (2, 4)
"""Of a map, of which a block has one of two images, where whole maps are too large."""
THREADS = (64, 1024)
"""Least and most of a block."""


def applies(spec: LayerSpec, geometry: Geometry) -> bool:
    """Whether there is such a kernel for a layer."""
    return (
        isinstance(spec, Conv2d)
        and spec.data_type == "float16"
        and geometry.groups == geometry.patch_rows == 1
        and not prepares_inputs(spec)
        and not is_pooled(spec)
    )


def candidates(layer: LoweredConvolution) -> Iterator[Tiling]:
    """Tilings worth a look, whether they fit or not; as a rule the faster ones first."""
    geometry = layer.geometry
    for kernels, block, cluster, chunk in product(GROUP_KERNELS, list(_blocks(geometry)), CLUSTERS, CHUNKS):
        width, height, images = block
        chunks, rest = divmod(geometry.channels, cluster * chunk)
        if chunks >= 2 and not rest:
            yield Tiling(width, height, 1, kernels, chunk, 2, images=images, cluster=cluster)


def _blocks(geometry: Geometry) -> Iterator[tuple[int, int, int]]:
    """Width, height and images of a block: of two columns far apart in one image there are no clusters."""
    width, height = geometry.positions_width, geometry.positions_height
    least = 2 // geometry.neighbours
    whole = [(width, height, images) for images in dict.fromkeys((*IMAGES, least))]
    parts = [(-(-width // n), 1, least) if height == 1 else (width, -(-height // n), least) for n in PARTS]
    for block in (*whole, *(parts if width * height > THREADS[1] else ())):
        if THREADS[0] <= math.prod(block) // least <= THREADS[1]:
            yield block
