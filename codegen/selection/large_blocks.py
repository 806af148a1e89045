"""Candidate tilings of linear with large blocks, for many rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from codegen.ir.layer_spec import Linear
from codegen.ir.tiling import Tiling
from codegen.kernels.lowering import LoweredLinear


class LargeBlock(NamedTuple):
    """A size of large blocks, with each of several numbers of outputs."""

    threads: int
    """Threads of a K group: rows of the batch, or in float16 pairs of them."""
    groups: int
    """K groups of a block."""
    outputs: tuple[int, ...]
    """Numbers of outputs of a K group."""
    least_inputs: int = 0
    """Fewest inputs of a layer that has such blocks."""

    def tilings(self, inputs: int, stages: int) -> Iterator[Tiling]:
        """A tiling for each number of outputs; `inputs`: those of a chunk."""
        for outputs in self.outputs:
            yield Tiling("linear", self.threads, self.groups, 1, outputs, inputs, stages)


CHUNKS = {"float32": 32, "float16": 64}
"""Inputs of a chunk; bfloat16 has no large blocks."""
WHOLE_BLOCKS = {
    "float32": (
        LargeBlock(320, 1, (48, 64, 96)),
        LargeBlock(384, 1, (96,)),
        LargeBlock(416, 1, (48, 64, 96)),
        LargeBlock(192, 2, (96,)),
        LargeBlock(320, 2, (32, 64)),
    ),
    "float16": (
        LargeBlock(320, 1, (32, 48, 64)),
        LargeBlock(384, 1, (32, 48, 64)),
        LargeBlock(224, 2, (32,), least_inputs=256),
        LargeBlock(320, 2, (40,), least_inputs=768),
    ),
}
"""Blocks that have all inputs: others were slower, or spill registers."""
DIVIDED_BLOCKS = {
    "float32": (
        LargeBlock(320, 1, (48, 64)),
        LargeBlock(416, 1, (48, 64)),
        LargeBlock(320, 2, (32, 64)),
    ),
    "float16": (
        LargeBlock(320, 1, (48, 64)),
        LargeBlock(416, 1, (48, 64)),
        LargeBlock(320, 2, (24,)),
    ),
}
"""Blocks that share the inputs in a cluster."""
DIVIDED_STAGES = {"float32": 3, "float16": 2}
"""Chunks in flight of these."""
DIVIDED_CLUSTERS = (2, 4)
"""Blocks of a cluster: eight gained nothing."""
DIVIDED_INPUTS = 256
"""Fewest inputs of a block of a cluster: with fewer, the exchange of sums takes longer than it saves."""


def candidates(layer: LoweredLinear) -> Iterator[Tiling]:
    """Candidate tilings, in a fixed order, whether they fit or not, for architectures that have clusters."""
    spec = layer.spec
    if spec.data_type == "bfloat16" or spec.inputs < CHUNKS[spec.data_type]:
        return
    yield from _whole(spec)
    if spec.data_type == "float16" or spec.outputs <= spec.inputs:  # else sums to exchange outnumber the inputs saved
        yield from _divided(spec)


def _whole(spec: Linear) -> Iterator[Tiling]:
    for block in WHOLE_BLOCKS[spec.data_type]:
        if spec.inputs >= block.least_inputs:
            for tiling in block.tilings(CHUNKS[spec.data_type], stages=2):
                yield tiling
                if spec.data_type == "float32":
                    yield replace(tiling, order="place")


def _divided(spec: Linear) -> Iterator[Tiling]:
    clusters = [cluster for cluster in DIVIDED_CLUSTERS if spec.inputs >= DIVIDED_INPUTS * cluster]
    for block in DIVIDED_BLOCKS[spec.data_type]:
        for tiling in block.tilings(CHUNKS[spec.data_type], DIVIDED_STAGES[spec.data_type]):
            for cluster in clusters:
                yield replace(tiling, cluster=cluster)
