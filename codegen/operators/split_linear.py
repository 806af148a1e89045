"""Fully connected layers whose inputs are split over the blocks of a cluster: tilings of linear.cu."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.operators.geometry import QUAD, Geometry
from codegen.operators.linear import SOURCE, block_region, launch_of, sources, work
from codegen.operators.lowered import LoweredLinear
from codegen.spec import LayerSpec
from codegen.tiling import Tiling

__all__ = ["SOURCE", "applies", "block_region", "candidates", "launch_of", "sources", "work"]

CLUSTERS = (8, 4, 2)
"""Blocks of a cluster: every GPU that has clusters takes eight."""
GROUP_KERNELS = (8, 16, 24, 32, 40, 48, 64)
THREADS = (32, 64, 128)
"""Rows of a block."""
CHUNKS = (1, 2, 4, 8, 16)
"""Of a block's inputs."""
REFILLED = 3
"""Chunks in flight where they are not all there at once."""


def applies(spec: LayerSpec, geometry: Geometry) -> bool:
    """Whether there is such a kernel for a layer."""
    return geometry.is_linear and spec.data_type == "float32"


def candidates(layer: LoweredLinear) -> Iterator[Tiling]:
    """Tilings worth a look, in a fixed order, whether they fit or not: all chunks of a block at once, or three."""
    spec = layer.spec
    for threads in THREADS:
        for cluster in CLUSTERS:
            share = -(-spec.inputs // cluster)
            for kernels in GROUP_KERNELS:
                if kernels % cluster or kernels >= spec.outputs + cluster:
                    continue
                for count in CHUNKS:
                    chunk = -(-share // (QUAD * count)) * QUAD
                    yield Tiling(threads, 1, 1, kernels, chunk, count + 1, cluster=cluster)
                    if count >= REFILLED:
                        yield Tiling(threads, 1, 1, kernels, chunk, REFILLED, cluster=cluster)
