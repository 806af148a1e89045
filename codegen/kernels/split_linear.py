"""Fully connected layers whose inputs are split over the blocks of a cluster: tilings of linear.cu."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.kernels.cluster_conv2d import CLUSTERS, GROUP_KERNELS, REFILLED
from codegen.kernels.geometry import QUAD, Geometry
from codegen.kernels.linear import SOURCE, block_region, launch_of, sources, work
from codegen.kernels.lowering import LoweredLinear

__all__ = ["SOURCE", "applies", "block_region", "candidates", "launch_of", "sources", "work"]

THREADS = (32, 64, 128)
"""Rows of a block."""
CHUNKS = (1, 2, 4, 8, 16)
"""Of a block's inputs."""


def applies(spec: LayerSpec, geometry: Geometry) -> bool:
    """Whether there is such a kernel for a layer."""
    return geometry.is_linear and spec.data_type in ("float32", "float16")


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
