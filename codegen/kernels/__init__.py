"""The kernels: CUDA sources with placeholders where the weights go, and one module for each beside them."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

import numpy as np

from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import KernelName, Part, Tiling
from codegen.kernels import cluster_conv2d, conv2d, direct_global, linear, table_conv2d, table_linear
from codegen.kernels.geometry import canonical, geometry_of
from codegen.kernels.lowering import AnyTiled, KernelModule, Lowered, TableKernelModule, Tiled
from codegen.kernels.weight_stream import PRODUCTS_TOGETHER

__all__ = [
    "KERNELS",
    "TABLE_KERNELS",
    "AnyTiled",
    "Lowered",
    "Tiled",
    "canonical",
    "launch_of",
    "lower",
    "needs_clusters",
    "products_together",
    "source_path",
    "stream_count",
    "template_cost",
    "tiled",
]

TABLE_KERNELS: MappingProxyType[KernelName, TableKernelModule] = MappingProxyType(
    {"table_linear": table_linear, "table_conv2d": table_conv2d}
)
"""The kernels whose weights are a table."""
KERNELS: MappingProxyType[KernelName, KernelModule] = MappingProxyType(
    {
        "conv2d": conv2d,
        "linear": linear,
        "cluster_conv2d": cluster_conv2d,
        "direct_global": direct_global,
        **TABLE_KERNELS,
    }
)
"""Every kernel's module."""


@lru_cache(maxsize=32)  # the checkpoints of a sweep have the same layers
def lower(spec: LayerSpec) -> Lowered[LayerSpec]:
    """The layer with its geometry and the kernels that can compute it."""
    spec = canonical(spec)
    geometry = geometry_of(spec)
    reasons = {name: module.unsuitable(spec, geometry) for name, module in KERNELS.items()}
    return Lowered(
        spec,
        geometry,
        {name: module for name, module in KERNELS.items() if not reasons[name]},
        {name: reason for name, reason in reasons.items() if reason},
    )


def tiled(spec: LayerSpec, tiling: Tiling) -> AnyTiled:
    """A layer lowered and divided. Raises TilingError if the tiling's kernel cannot compute it so."""
    return lower(spec).tiled(tiling)


def source_path(tiling: Tiling) -> Path:
    """The CUDA source of the tiling's kernel."""
    return Path(str(files("codegen.kernels").joinpath("cuda", KERNELS[tiling.kernel].SOURCE)))


def needs_clusters(tiling: Tiling) -> bool:
    """Whether the kernel runs only on architectures with thread block clusters, which have dependent launches too."""
    return tiling.cluster > 1 or tiling.waits or tiling.kernel == "table_conv2d"


def launch_of(spec: LayerSpec, tiling: Tiling, part: Part | None = None) -> Launch:
    """The launch of the kernel of a part of the layer, or of one kernel for the whole layer."""
    layer = tiled(spec, tiling)
    return layer.launch if part is None else layer.launch_of(part)


def template_cost(spec: LayerSpec, tiling: Tiling) -> int:
    """Multiply-adds that nvcc compiles: its time grows with them."""
    if tiling.form == "full":
        return spec.weights_count * tiling.rows
    return tiled(spec, tiling).workload.slots


def products_together(weights: Weights, tiling: Tiling) -> int:
    """Most products of one sum that a float16 kernel adds up in float16: one with a table, which adds up in float32."""
    if tiling.reads_table:
        return 1
    if tiling.accumulate == "float16":
        return int(weights.nonzeros_per_output.max())
    kernel = weights.kernel.reshape(*weights.kernel.shape[:2], -1)
    if tiling.cluster > 1:  # each block's sums are float16 throughout
        of_output = kernel.reshape(len(kernel), -1)
        missing = -of_output.shape[1] % tiling.cluster  # inputs that the last blocks of a linear layer lack
        shares = np.pad(of_output, ((0, 0), (0, missing))).reshape(len(kernel), tiling.cluster, -1)
        return int(np.count_nonzero(shares, axis=2).max())
    until = np.pad(np.cumsum(np.count_nonzero(kernel, axis=2), axis=1), ((0, 0), (1, 0)))
    width = min(tiling.chunk_channels, kernel.shape[1])
    of_chunk = until[:, width:] - until[:, :-width]  # wherever it begins: that may be before the group's first channel
    return max(PRODUCTS_TOGETHER, int(of_chunk.max()))


def stream_count(spec: LayerSpec, tiling: Tiling) -> int:
    """Instruction streams of a layer: its K groups, times the blocks of a cluster."""
    return tiled(spec, tiling).streams.count
