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


def applies(spec: LayerSpec, geometry: Geometry) -> bool:
    """Whether there is such a kernel for a layer."""
    return geometry.is_linear and spec.data_type == "float32"


def candidates(layer: LoweredLinear) -> Iterator[Tiling]:
    """Tilings worth a look, in a fixed order, whether they fit or not: all of a block's inputs are copied at once."""
    spec = layer.spec
    unit = QUAD if spec.inputs % QUAD == 0 else 1
    for threads in THREADS:
        for cluster in CLUSTERS:
            share = -(-spec.inputs // cluster)
            chunks = -(-share // (unit * threads))
            chunk = -(-share // (QUAD * chunks)) * QUAD
            for kernels in GROUP_KERNELS:
                if kernels % cluster == 0 and kernels < spec.outputs + cluster:
                    yield Tiling(threads, 1, 1, kernels, chunk, chunks + 1, cluster=cluster)
