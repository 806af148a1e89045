"""Limits on a layer's code, and the staged tilings within them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from codegen.kernels import AnyTiled, lower
from codegen.selection.candidates import candidates
from codegen.selection.costs.cluster_blocks import FEW_ROWS
from codegen.selection.costs.stream import Stream
from codegen.selection.feasibility import block_fits, comes_out_even
from codegen.selection.kernel_split import CLUSTERED_INSTRUCTIONS
from codegen.selection.question import RankingQuestion

STREAM_MULTIPLY_ADDS = 20_000
"""Most multiply-adds of one K group: beyond, the time of ptxas grows faster than linearly."""
STREAM_BYTES = 500_000
"""Most machine code that one block runs."""
LOOPED_STREAMS = 2.5
"""Factor on these two for streams whose copies are loops: ptxas compiles each chunk on its own (13 s for 40,000)."""
LAYER_INSTRUCTIONS = 60_000
"""Most instructions of a layer, over all its kernels: tilings with more are dropped if there are others."""
MORE_CODE, MORE_PACKED_CODE = 1.2, 1.6
"""Most code of a layer beyond that limit, over the smallest; more for a convolution of float16, where half as many
threads follow each stream: K groups of fewer output channels are more code in all, and less for each to wait for."""
ROUNDED = 0.999
"""Share of a multiply-add per non-zero and row of a thread that is a tiling's least code."""
LARGE_CODE = 1.5
"""Most instructions per non-zero weight of a layer beyond that limit, if some tiling has fewer."""
MOST_EXCESS = 2.0
"""Most code of a tiling over that limit, for a linear layer of many rows: the excess counts as time. By a limit alone,
a layer a little sparser than another lost its fastest tiling."""


class SizedLayer(NamedTuple):
    """A layer divided by a tiling whose code is within the limits, and the size of that code."""

    layer: AnyTiled
    stream: Stream
    instructions: float
    """Instructions of all its streams."""
    excess: float
    """Its instructions over the most that its layer should have; at least 1."""


@lru_cache(maxsize=4)
def within_limits(question: RankingQuestion) -> tuple[SizedLayer, ...]:
    """Staged tilings without clusters that fit every GPU; a job's GPUs share them.

    Large blocks fit some GPUs, and are among them if the architecture has clusters.
    """
    spec, density = question.spec, question.density
    layer = lower(spec)
    sizes: list[tuple[AnyTiled, Stream, float]] = []
    packed = spec.data_type == "float16" and not layer.geometry.is_linear
    limit, more = math.inf, MORE_PACKED_CODE if packed else MORE_CODE
    most_excess = MOST_EXCESS if layer.geometry.is_linear and question.batch > FEW_ROWS else 1.0
    least = ROUNDED * density * spec.weights_count
    large = candidates(layer, "large") if question.clusters else ()
    for candidate in chain(candidates(layer), large):
        if candidate.rows * least > most_excess * limit:
            continue
        same = candidate.accumulate == question.accumulate
        divided = layer.tiled(candidate if same else replace(candidate, accumulate=question.accumulate))
        if not comes_out_even(divided):
            continue
        stream = Stream.of(divided.workload, density)
        size = stream.code * divided.workload.streams
        if candidate.order == "place" and size > CLUSTERED_INSTRUCTIONS:
            continue
        if size <= most_excess * limit and _stream_fits(divided, stream) and block_fits(divided):
            sizes.append((divided, stream, size))
            # Of a layer that is larger with every tiling, the smaller tilings are kept.
            dense = LARGE_CODE * density * spec.weights_count
            most = more * size if packed or size > dense else min(more * size, dense)
            limit = min(limit, max(LAYER_INSTRUCTIONS, most))
    return tuple(
        SizedLayer(divided, stream, size, max(1.0, size / limit))
        for divided, stream, size in sizes
        if size <= most_excess * limit
    )


def _stream_fits(layer: AnyTiled, stream: Stream) -> bool:
    """Whether an average K group is within the limits of one."""
    multiply_adds, code_bytes = stream_limits(layer)
    return stream.multiply_adds <= multiply_adds and stream.code_bytes <= code_bytes


def stream_limits(layer: AnyTiled) -> tuple[float, float]:
    """Most multiply-adds and most bytes of code of a K group."""
    more = LOOPED_STREAMS if layer.workload.loop_instructions else 1
    return more * STREAM_MULTIPLY_ADDS, more * STREAM_BYTES
