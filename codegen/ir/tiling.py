"""Tiling: the kernel of a layer, and how its work is divided over blocks, threads, registers and shared memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

LARGE_BLOCK = 320
"""Fewest threads of a large block of a linear layer."""

KernelName = Literal["conv2d", "linear", "cluster_conv2d", "direct_global", "table_linear", "table_conv2d"]
"""The GPU kernels of `codegen/kernels`, one module and one CUDA source each."""
Form = Literal["rolled", "full"]
Accumulator = Literal["float32", "float16"]
Order = Literal["group", "place"]


@dataclass(frozen=True)
class Tiling:
    """The kernel of a layer and how its work is divided; recorded with every build and part of the template's key.

    `Lowered.tiled` refuses combinations that no kernel has.
    """

    kernel: KernelName
    tile_width: int
    """Output columns of a block; a thread owns one."""
    tile_height: int
    """Rows of threads of a block; in a linear layer each follows a K group of its own."""
    rows: int
    """Output rows of a thread."""
    group_outputs: int
    """Output channels of a K group: one instruction stream."""
    chunk_channels: int
    """Input channels in shared memory at a time."""
    stages: int
    """Chunks in flight: 2 is double buffering. 0 for direct_global, which puts no input into shared memory."""
    accumulate: Accumulator = "float32"
    """Type in which a float16 layer adds up its sums beyond the first products; float16 is faster and less exact."""
    form: Form = "rolled"
    """The extent of the template. rolled: nvcc compiles one chunk of one K group and the rewriter unrolls it; full:
    nvcc compiles everything. Kernels that read a table have no weights in their code: always rolled."""

    images: int = 1
    """Images of a block: small maps share one. A thread of a float16 convolution computes two images if the number is
    even, two columns if it is odd; in a 1x1 convolution with an even number of positions, two neighbouring columns,
    which `tile_width` counts as one."""

    listed: bool = False
    """For direct_global: compute the columns that a list names, and mark those that have an output."""

    cluster: int = 1
    """Blocks of a thread block cluster (compute_90 and later) among which the input channels of a K group are divided;
    they add up their sums. 1: each block has all channels."""

    order: Order = "group"
    """The order in which the blocks of conv2d begin. group: all of a K group before the next, so that all
    multiprocessors follow one stream. place: all K groups of some positions before the next positions, so that their
    input comes from memory once."""

    groups: int = 1
    """K groups of a block of conv2d, which share its input in shared memory. Each has warps of its own."""

    waits: bool = False
    """Whether the kernel begins before the one ahead of it has ended, and itself waits for that one before it reads its
    input: programmatic dependent launch (compute_90 and later). Kernels of convolutions with weights in a table always
    do."""

    @property
    def reads_table(self) -> bool:
        """Whether the weights are a table in global memory and not immediates in the code."""
        return self.kernel in ("table_linear", "table_conv2d")

    @property
    def is_large(self) -> bool:
        """Whether blocks of a linear layer are large, for many rows: their chunks need an opt-in to shared memory."""
        return self.kernel == "linear" and self.tile_width * self.tile_height >= LARGE_BLOCK

    @property
    def block_groups(self) -> int:
        """K groups of a block: `groups`, or in a large block of a linear layer one for each row of threads."""
        return self.tile_height if self.kernel == "linear" else self.groups

    @property
    def splits_streams(self) -> bool:
        """Whether the blocks of a cluster run different instruction streams, each for its share of the channels."""
        return self.cluster > 1 and not self.reads_table

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        if self.order == "group":
            del fields["order"]
        if not self.listed:
            del fields["listed"]
        if self.cluster == 1:
            del fields["cluster"]
        if self.groups == 1:
            del fields["groups"]
        if not self.waits:
            del fields["waits"]
        return fields


@dataclass(frozen=True)
class Part:
    """Consecutive K groups of a layer that make one kernel: first <= group < end. A large layer has several."""

    first: int
    end: int
