"""The operators: CUDA sources with placeholders where the weights go, one module each beside its .cu file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from codegen.launch import Launch
from codegen.layers import Weights
from codegen.operators import conv2d, linear
from codegen.operators.geometry import Streams, canonical, geometry_of
from codegen.operators.region import Region
from codegen.operators.stream import PRODUCTS_TOGETHER
from codegen.operators.work import Work
from codegen.spec import Conv2d, ConvTranspose2d, LayerSpec, Linear
from codegen.tiling import Part, Tiling

# The specs that these functions take are those that the operator is for: `operator_of` sees to that.


class Operator(Protocol):
    """What an operator's module holds. Its functions want canonical specs."""

    SOURCE: str
    """The .cu file of this folder that its templates are made from."""

    def sources(self, spec: Any, tiling: Tiling) -> dict[str, str]:
        """The generated headers that the .cu includes."""

    def launch_of(self, spec: Any, tiling: Tiling, part: Part | None = None) -> Launch:
        """Grid, block and shared memory of the kernel of a part; of all K groups without one."""

    def tiles(self, spec: Any, tiling: Tiling) -> tuple[int, int]:
        """Blocks per image and K group: down and across."""

    def block_region(self, spec: Any, tiling: Tiling, block: tuple[int, int, int]) -> Region:
        """The outputs that a block writes: blockIdx.x, blockIdx.y and the number of its K group in the layer."""

    def work(self, spec: Any, tiling: Tiling) -> Work:
        """What one stream does."""

    def candidates(self, spec: Any) -> Iterator[Tiling]:
        """Tilings worth a look, in a fixed order, whether they fit or not."""

    def last_resort(self, spec: Any) -> Iterator[Tiling]:
        """Tilings of layers that the limits leave no other."""


__all__ = [
    "Operator",
    "canonical",
    "launch_of",
    "operator_of",
    "products_together",
    "source_path",
    "stream_count",
    "template_cost",
]

_OPERATORS: dict[type, Operator] = {Conv2d: conv2d, ConvTranspose2d: conv2d, Linear: linear}


def operator_of(spec: LayerSpec) -> Operator:
    """The operator that computes a layer of this spec."""
    return _OPERATORS[type(spec)]


def source_path(spec: LayerSpec) -> Path:
    """Where the operator's CUDA source lies."""
    return Path(str(files("codegen.operators").joinpath(operator_of(spec).SOURCE)))


def launch_of(spec: LayerSpec, tiling: Tiling, part: Part | None = None) -> Launch:
    """How the kernel of a part of this layer is launched, or the one kernel of the whole layer."""
    return operator_of(spec).launch_of(canonical(spec), tiling, part)


def template_cost(spec: LayerSpec, tiling: Tiling) -> int:
    """Multiply-adds that nvcc compiles: what its time grows with."""
    if tiling.form == "full":
        return spec.weights_count * tiling.rows
    return operator_of(spec).work(canonical(spec), tiling).slots


def products_together(weights: Weights, tiling: Tiling) -> int:
    """The most products of a sum that a float16 kernel adds up in float16."""
    if tiling.accumulate == "float16":
        return int(weights.nonzeros_per_kernel.max())
    kernel = weights.kernel.reshape(*weights.kernel.shape[:2], -1)
    until = np.pad(np.cumsum(np.count_nonzero(kernel, axis=2), axis=1), ((0, 0), (1, 0)))
    width = min(tiling.chunk_channels, kernel.shape[1])
    of_chunk = until[:, width:] - until[:, :-width]  # wherever it begins: that may be before the group's first channel
    return max(PRODUCTS_TOGETHER, int(of_chunk.max()))


def stream_count(spec: LayerSpec, tiling: Tiling) -> int:
    """K groups of a layer."""
    return Streams.of(geometry_of(spec), tiling).count
