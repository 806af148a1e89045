"""Candidate tilings of a layer: every generator, with its kernel and its family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import KernelName, Tiling
from codegen.kernels import cluster_conv2d, conv2d, direct_global, linear, table_conv2d, table_linear
from codegen.kernels.lowering import Lowered
from codegen.selection import large_blocks

Family = Literal["staged", "large", "clusters", "direct", "tables"]
"""staged: inputs through shared memory; large: the same in blocks of linear layers that need more of it; clusters: the
same, channels divided among the blocks of a cluster; direct: inputs straight from global memory; tables: weights in a
table. One family is compared by one rule."""


@dataclass(frozen=True)
class Generator:
    """Tilings of one kernel that are worth predicting, in a fixed order, whether they fit or not."""

    kernel: KernelName
    family: Family
    tilings: Callable[[Lowered[Any]], Iterator[Tiling]]


GENERATORS = (
    Generator("conv2d", "staged", conv2d.candidates),
    Generator("linear", "staged", linear.candidates),
    Generator("linear", "large", large_blocks.candidates),
    Generator("conv2d", "clusters", conv2d.cluster_candidates),
    Generator("linear", "clusters", linear.cluster_candidates),
    Generator("cluster_conv2d", "clusters", cluster_conv2d.candidates),
    Generator("direct_global", "direct", direct_global.candidates),
    Generator("table_linear", "tables", table_linear.candidates),
    Generator("table_conv2d", "tables", table_conv2d.candidates),
)
_LAST_RESORTS: dict[KernelName, Callable[[Lowered[Any]], Iterator[Tiling]]] = {
    "conv2d": conv2d.last_resort,
    "linear": linear.last_resort,
}


def candidates(layer: Lowered[LayerSpec], family: Family = "staged") -> Iterator[Tiling]:
    """The candidate tilings of one family, in a fixed order, whether they fit or not; empty if no kernel has any."""
    for generator in GENERATORS:
        if generator.family == family and generator.kernel in layer.kernels:
            yield from generator.tilings(layer)


def last_resort(layer: Lowered[LayerSpec]) -> Iterator[Tiling]:
    """Tilings of one output channel at a time, for layers of which no candidate fits the limits."""
    for kernel, tilings in _LAST_RESORTS.items():
        if kernel in layer.kernels:
            yield from tilings(layer)
