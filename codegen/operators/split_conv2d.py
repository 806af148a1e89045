"""Convolutions of float16 whose channels are split over the blocks of a cluster: tilings of conv2d.cu."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from codegen.operators.conv2d import SOURCE, block_region, launch_of, sources, work
from codegen.operators.geometry import Geometry
from codegen.operators.lowered import LoweredConvolution
from codegen.spec import Conv2d, LayerSpec, is_pooled, prepares_inputs
from codegen.tiling import Tiling

__all__ = ["SOURCE", "applies", "block_region", "candidates", "launch_of", "sources", "work"]

CLUSTERS = (2, 4)
GROUP_KERNELS = (32, 16)
CHUNKS = (4, 8, 16)
IMAGES = (32, 16, 8, 4, 2)
"""Of a block, which has whole maps."""
THREADS = (128, 1024)
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
    """Tilings worth a look, of whole maps, whether they fit or not; as a rule the faster ones first."""
    geometry = layer.geometry
    width, height = geometry.positions_width, geometry.positions_height
    blocks = [
        images for images in IMAGES if THREADS[0] <= width * height * images * geometry.neighbours // 2 <= THREADS[1]
    ]
    for kernels, images, cluster, chunk in product(GROUP_KERNELS, blocks, CLUSTERS, CHUNKS):
        chunks, rest = divmod(geometry.channels, cluster * chunk)
        if chunks >= 2 and not rest:
            yield Tiling(width, height, 1, kernels, chunk, 2, images=images, cluster=cluster)
