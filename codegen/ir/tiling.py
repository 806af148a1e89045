"""Tiling: how a layer's work is divided over blocks, threads, registers and shared memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Form = Literal["rolled", "full", "table"]
Accumulator = Literal["float32", "float16"]
Order = Literal["group", "place"]


@dataclass(frozen=True)
class Tiling:
    """How one layer is divided; recorded with every build and part of the template's key."""

    tile_width: int
    """Output columns of a block; a thread owns one."""
    tile_height: int
    """Rows of threads of a block."""
    rows: int
    """Output rows of a thread."""
    group_outputs: int
    """Output channels of a K group: one instruction stream."""
    chunk_channels: int
    """Input channels in shared memory at a time."""
    stages: int
    """Chunks in flight, 2 is double buffering; 0: inputs come straight from global memory, without chunks in shared."""
    accumulate: Accumulator = "float32"
    """What float16 layers add up products in, beyond the first so many; float16 is faster and less exact."""
    form: Form = "rolled"
    """rolled: one chunk of one K group is compiled, the rewriter unrolls; full: everything is; table: the kernel has no
    weights, they are data beside it."""

    images: int = 1
    """Of a block: small maps share one. A thread of a float16 convolution computes two images where the number is even,
    two columns where it is odd; with a 1x1 kernel, of a map with an even number of positions, two neighbouring columns,
    which `tile_width` counts as one."""

    listed: bool = False
    """Of a kernel without stages: it computes as many columns as a list has, from where that says, and marks those that
    have an output."""

    cluster: int = 1
    """Blocks that share the input channels of a K group among them and add up their sums: a cluster of the GPU's,
    from compute_90 on. 1: each block has all channels."""

    order: Order = "group"
    """In which order a convolution's blocks begin. group: all of a K group before the next, so that all multiprocessors
    follow one stream. place: all K groups of some positions before those of the next positions, so that their input
    comes from memory once."""

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        if self.order == "group":
            del fields["order"]
        if not self.listed:
            del fields["listed"]
        if self.cluster == 1:
            del fields["cluster"]
        return fields


@dataclass(frozen=True)
class Part:
    """Consecutive K groups of a layer that make one kernel: first <= group < end. A large layer has several."""

    first: int
    end: int
