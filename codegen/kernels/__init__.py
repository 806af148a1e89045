"""The operators: CUDA sources with placeholders where the weights go, one module each beside its .cu file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, LayerSpec, Linear
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import (
    cluster_conv2d,
    conv2d,
    direct_global,
    linear,
    split_conv2d,
    split_linear,
    table_conv2d,
    table_linear,
)
from codegen.kernels.geometry import canonical, geometry_of
from codegen.kernels.lowering import AnyTiled, GeneralOperator, Lowered, Tiled
from codegen.kernels.weight_stream import PRODUCTS_TOGETHER

__all__ = [
    "AnyTiled",
    "Lowered",
    "Tiled",
    "canonical",
    "is_newest",
    "launch_of",
    "lower",
    "products_together",
    "source_path",
    "stream_count",
    "template_cost",
    "tiled",
]

_OPERATORS: dict[type, GeneralOperator] = {Conv2d: conv2d, ConvTranspose2d: conv2d, Linear: linear}


def lower(spec: LayerSpec) -> Lowered[LayerSpec]:
    """The layer that the kernel is made for."""
    spec = canonical(spec)
    geometry = geometry_of(spec)
    return Lowered(
        spec,
        geometry,
        _OPERATORS[type(spec)],
        direct_global if direct_global.applies(spec, geometry) else None,
        next((split for split in (cluster_conv2d, split_conv2d, split_linear) if split.applies(spec, geometry)), None),
        next((each for each in (table_linear, table_conv2d) if each.applies(spec, geometry)), None),
    )


def tiled(spec: LayerSpec, tiling: Tiling) -> AnyTiled:
    """A layer divided by a tiling, lowered on the way."""
    return lower(spec).tiled(tiling)


def source_path(spec: LayerSpec, tiling: Tiling) -> Path:
    """Where the operator's CUDA source lies."""
    return Path(str(files("codegen.kernels").joinpath("cuda", tiled(spec, tiling).operator.SOURCE)))


def is_newest(spec: LayerSpec, tiling: Tiling) -> bool:
    """Whether its kernels are made for architectures with clusters only."""
    return tiling.cluster > 1 or (tiling.form == "table" and not isinstance(spec, Linear))


def launch_of(spec: LayerSpec, tiling: Tiling, part: Part | None = None) -> Launch:
    """How the kernel of a part of this layer is launched, or the one kernel of the whole layer."""
    layer = tiled(spec, tiling)
    return layer.launch if part is None else layer.launch_of(part)


def template_cost(spec: LayerSpec, tiling: Tiling) -> int:
    """Multiply-adds that nvcc compiles: what its time grows with."""
    if tiling.form == "full":
        return spec.weights_count * tiling.rows
    return tiled(spec, tiling).work.slots


def products_together(weights: Weights, tiling: Tiling) -> int:
    """The most products of a sum that a float16 kernel adds up in float16."""
    if tiling.accumulate == "float16":
        return int(weights.nonzeros_per_output.max())
    kernel = weights.kernel.reshape(*weights.kernel.shape[:2], -1)
    if tiling.cluster > 1:  # each block's sums are float16 throughout
        of_kernel = kernel.reshape(len(kernel), -1)
        missing = -of_kernel.shape[1] % tiling.cluster  # inputs that the last blocks of a linear layer lack
        shares = np.pad(of_kernel, ((0, 0), (0, missing))).reshape(len(kernel), tiling.cluster, -1)
        return int(np.count_nonzero(shares, axis=2).max())
    until = np.pad(np.cumsum(np.count_nonzero(kernel, axis=2), axis=1), ((0, 0), (1, 0)))
    width = min(tiling.chunk_channels, kernel.shape[1])
    of_chunk = until[:, width:] - until[:, :-width]  # wherever it begins: that may be before the group's first channel
    return max(PRODUCTS_TOGETHER, int(of_chunk.max()))


def stream_count(spec: LayerSpec, tiling: Tiling) -> int:
    """K groups of a layer."""
    return tiled(spec, tiling).streams.count
