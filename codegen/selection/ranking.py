"""Tilings of a layer by their predicted times: for a band of batch sizes and densities, not yet for its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from codegen.ir.layer_spec import Conv2d, LayerSpec
from codegen.ir.tiling import Accumulator, Tiling
from codegen.kernels import AnyTiled, Lowered, lower
from codegen.selection.candidates import candidates
from codegen.selection.cost_model import Stream, predict_microseconds
from codegen.selection.feasibility import block_fits, comes_out_even
from codegen.selection.kernel_split import CLUSTERED_INSTRUCTIONS
from codegen.selection.table_candidates import with_tables

STREAM_MULTIPLY_ADDS = 20_000
"""Most multiply-adds of one K group: beyond, the time of ptxas grows faster than linearly."""
STREAM_BYTES = 500_000
"""Machine code that one block runs, at most."""
LOOPED_STREAMS = 2.5
"""How much more a stream may have whose chunks end in loops: ptxas takes them one by one (13 s for 40,000)."""
LAYER_INSTRUCTIONS = 60_000
"""Most instructions of a layer, over all its kernels: tilings with more are left out if there are others."""
MORE_CODE, MORE_PACKED_CODE = 1.2, 1.6
"""How much more code than the smallest such a layer may have; and a convolution of float16, of which half as many
threads follow each stream: K groups of fewer kernels are more code in all, and less for each of them to wait for."""
ROUNDED = 0.999
"""Of what a tiling's code is at least: a multiply-add for each non-zero and each row of a thread."""
LARGE_CODE = 1.5
"""Instructions for each non-zero weight, which such a layer has no more of where a tiling does with fewer."""
UNSTAGED_DENSITY = 0.05
"""Up to which tilings without stages are looked at: of denser layers every input is used often."""
UNSTAGED_GAIN = 1.25
"""How much faster such a tiling must be predicted than all others: its terms are not fitted."""
MOST_BY_PLACE = 60
"""So many of a convolution's tilings have their blocks in the other order too, those predicted to be fastest so."""
SPLIT_CODE = 1.5
"""How much more code a layer over clusters may have than the smallest: its time has the fetching of it all."""
SPLIT_ROWS = 64
"""Most rows, by bands, with which a linear layer is split over clusters: its prediction is fitted to no more."""
SPLIT_POSITIONS = 8_192
"""Most positions of all images, by bands, with which a convolution is: more give all multiprocessors work without."""
TABLE_ROWS = 4
"""Most rows or images, by bands, with which weights may be a table: of more, they are used more often."""
TABLE_DENSITY = 0.5
"""Up to which they are looked at: a table of more would be as large as all weights, with their columns."""


class Ranking(Protocol):
    """Puts the tilings of a layer in order, the one predicted to be fastest first: `ranking_of`, or who has kept it."""

    def __call__(
        self,
        layer: Lowered[LayerSpec],
        batch: int,
        density: float,
        accumulate: Accumulator,
        *,
        clusters: bool,
        tables: bool,
    ) -> Iterable[Tiling]:
        """For bands of batch and density; what it says depends on nothing else, and so on no weights."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A tiling that fits, and what is predicted of it."""

    tiling: Tiling
    microseconds: float
    instructions: float
    """Of all its streams."""


def ranking_of(
    layer: Lowered[LayerSpec],
    batch: int,
    density: float,
    accumulate: Accumulator,
    *,
    clusters: bool,
    tables: bool,
) -> tuple[Tiling, ...]:
    """The one predicted to be fastest first."""
    if clusters and _may_be_split(layer, batch):
        ranked = _with_clusters(layer.spec, batch, density, accumulate)
    else:
        ranked = _ranking(layer.spec, batch, density, accumulate)
    tilings = tuple(each.tiling for each in ranked if clusters or each.tiling.order == "group")
    ranking = _with_unstaged(layer, batch, density, tilings)
    if tables and batch <= TABLE_ROWS and density <= TABLE_DENSITY:
        ranking = with_tables(layer, batch, density, accumulate, ranking, clusters=clusters)
    return ranking


def _may_be_split(layer: Lowered[LayerSpec], batch: int) -> bool:
    """Whether tilings with clusters are looked at: those of float32 cost as much time here as all others together."""
    geometry = layer.geometry
    if geometry.is_linear:
        return batch <= SPLIT_ROWS
    if layer.spec.data_type == "float16":
        return True
    return batch * geometry.positions_height * geometry.positions_width <= SPLIT_POSITIONS


@lru_cache(maxsize=1024)
def _ranking(spec: LayerSpec, batch: int, density: float, accumulate: Accumulator) -> tuple[Ranked, ...]:
    """Tilings without clusters, those of convolutions in the order `place` too; a job's architectures share them."""
    layer = lower(spec)
    sizes: list[tuple[AnyTiled, Stream, float]] = []
    packed = spec.data_type == "float16" and not layer.geometry.is_linear
    limit, more = math.inf, MORE_PACKED_CODE if packed else MORE_CODE
    least = ROUNDED * density * spec.weights_count
    for candidate in candidates(layer):
        if candidate.rows * least > limit:
            continue
        tiling = candidate if candidate.accumulate == accumulate else replace(candidate, accumulate=accumulate)
        divided = layer.tiled(tiling)
        if not comes_out_even(divided):
            continue
        stream = Stream.of(divided.workload, density)
        size = stream.code * divided.workload.streams
        if size <= limit and _stream_fits(divided, stream) and block_fits(divided):
            sizes.append((divided, stream, size))
            # A layer that is larger whatever its tiling is given the smaller ones.
            dense = LARGE_CODE * density * spec.weights_count
            most = more * size if packed or size > dense else min(more * size, dense)
            limit = min(limit, max(LAYER_INSTRUCTIONS, most))
    fitting = [each for each in sizes if each[2] <= limit]
    ranked = _in_order(
        Ranked(each.tiling, predict_microseconds(each, batch, density, stream=stream), size)
        for each, stream, size in fitting
    )
    if not isinstance(spec, Conv2d):
        return ranked
    return _in_order(
        (*ranked, *_by_place(ranked, {each.tiling: (each, stream) for each, stream, _ in fitting}, batch, density))
    )


def _by_place(
    ranked: Sequence[Ranked], layers: Mapping[Tiling, tuple[AnyTiled, Stream]], batch: int, density: float
) -> tuple[Ranked, ...]:
    """The same tilings of a convolution with blocks that begin place after place, those predicted to be fastest so.

    They make a layer one kernel: only for architectures that need no ptxas for it, as those with clusters do not.
    """
    found = []
    for each in ranked:
        layer, stream = layers[each.tiling]
        if each.tiling.stages and layer.streams.count > 1 and each.instructions <= CLUSTERED_INSTRUCTIONS:
            microseconds = predict_microseconds(layer, batch, density, order="place", stream=stream)
            found.append(Ranked(each.tiling, microseconds, each.instructions))
    return tuple(replace(each, tiling=replace(each.tiling, order="place")) for each in _in_order(found)[:MOST_BY_PLACE])


def _in_order(found: Iterable[Ranked]) -> tuple[Ranked, ...]:
    return tuple(sorted(found, key=lambda each: each.microseconds))


def _with_unstaged(
    layer: Lowered[LayerSpec], batch: int, density: float, ranking: tuple[Tiling, ...]
) -> tuple[Tiling, ...]:
    """The ranking with the tilings without stages before it, where these are clearly faster, or behind it."""
    unstaged = _unstaged(layer.spec, batch, density)
    if not unstaged or not ranking:
        return (*unstaged, *ranking)
    best, other = (predict_microseconds(layer.tiled(each[0]), batch, density) for each in (unstaged, ranking))
    return (*unstaged, *ranking) if UNSTAGED_GAIN * best <= other else (*ranking, *unstaged)


@lru_cache(maxsize=1024)
def _unstaged(spec: LayerSpec, batch: int, density: float) -> tuple[Tiling, ...]:
    """Tilings without stages that fit the layer, the one predicted to be fastest first."""
    layer = lower(spec)
    if density > UNSTAGED_DENSITY:
        return ()
    times = {
        tiling: predict_microseconds(divided, batch, density)
        for tiling in candidates(layer, "direct")
        if comes_out_even(divided := layer.tiled(tiling)) and block_fits(divided)
    }
    return tuple(sorted(times, key=lambda tiling: times[tiling]))


@lru_cache(maxsize=1024)
def _with_clusters(spec: LayerSpec, batch: int, density: float, accumulate: Accumulator) -> tuple[Ranked, ...]:
    """Those with clusters among the others."""
    layer = lower(spec)
    others = _ranking(spec, batch, density, accumulate)
    split = [layer.tiled(replace(tiling, accumulate=accumulate)) for tiling in candidates(layer, "clusters")]
    if spec.data_type == "float16" and isinstance(spec, Conv2d):
        split += [layer.tiled(replace(each.tiling, order="place")) for each in split if each.streams.groups > 1]
    sizes = [(each, _code(each, density)) for each in split if comes_out_even(each) and block_fits(each)]
    limit = max(LAYER_INSTRUCTIONS, SPLIT_CODE * min((each.instructions for each in others), default=math.inf))
    return _in_order(
        (
            *(each for each in others if each.instructions <= limit),
            *(
                Ranked(each.tiling, predict_microseconds(each, batch, density), size)
                for each, size in sizes
                if size <= limit
            ),
        )
    )


def _code(layer: AnyTiled, density: float) -> float:
    """Instructions of all its streams."""
    return Stream.of(layer.workload, density).code * layer.workload.streams


def _stream_fits(layer: AnyTiled, stream: Stream) -> bool:
    """Whether an average K group is within the limits of one."""
    multiply_adds, code_bytes = stream_limits(layer)
    return stream.multiply_adds <= multiply_adds and stream.code_bytes <= code_bytes


def stream_limits(layer: AnyTiled) -> tuple[float, float]:
    """Multiply-adds and bytes of a K group, at most."""
    more = LOOPED_STREAMS if layer.workload.loop_instructions else 1
    return more * STREAM_MULTIPLY_ADDS, more * STREAM_BYTES
