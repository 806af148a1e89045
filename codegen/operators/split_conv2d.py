"""Convolutions of float16 whose channels are split over the blocks of a cluster: tilings of conv2d.cu."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.operators.conv2d import SOURCE, block_region, launch_of, sources, work
from codegen.operators.geometry import Geometry
from codegen.operators.lowered import LoweredConvolution
from codegen.spec import Conv2d, LayerSpec, prepares_inputs
from codegen.tiling import Tiling

__all__ = ["SOURCE", "applies", "block_region", "candidates", "launch_of", "sources", "work"]

CLUSTERS = (4, 2)
GROUP_KERNELS = (16, 32)
CHUNKS = (4, 8, 16)
IMAGES = (2, 4, 8, 16, 32)
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
    )


def candidates(layer: LoweredConvolution) -> Iterator[Tiling]:
    """Tilings worth a look, in a fixed order, whether they fit or not: of blocks that have whole maps."""
    geometry = layer.geometry
    width, height = geometry.positions_width, geometry.positions_height
    for images in IMAGES:
        if not THREADS[0] <= width * height * images // 2 <= THREADS[1]:
            continue
        for cluster in CLUSTERS:
            for kernels in GROUP_KERNELS:
                for chunk in CHUNKS:
                    if geometry.channels % (cluster * chunk) == 0 and geometry.channels // (cluster * chunk) >= 2:
                        yield Tiling(width, height, 1, kernels, chunk, 2, images=images, cluster=cluster)
