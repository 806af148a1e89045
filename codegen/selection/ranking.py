"""Rankings: the tilings of a layer by predicted time, for bands of batch and density; weights do not count."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from codegen.ir.layer_spec import Conv2d, LayerSpec
from codegen.ir.tiling import Tiling
from codegen.kernels import AnyTiled, Lowered, lower
from codegen.selection.alternatives import with_direct, with_tables
from codegen.selection.candidates import candidates
from codegen.selection.code_limits import LAYER_INSTRUCTIONS, within_limits
from codegen.selection.cost_model import predict_microseconds
from codegen.selection.costs.cluster_blocks import FEW_ROWS
from codegen.selection.costs.stream import Stream
from codegen.selection.feasibility import block_fits, comes_out_even
from codegen.selection.kernel_split import CLUSTERED_INSTRUCTIONS
from codegen.selection.question import RankingQuestion
from codegen.target.device_model import REFERENCE

MOST_BY_PLACE = 60
"""Most tilings of a convolution that are ranked with their blocks in the order `place` too."""
SPLIT_CODE, SPLIT_POINT_CODE = 1.5, 2.0
"""Most code of a layer over clusters, over the smallest: its predicted time includes fetching all of it; more of a 1x1
kernel in float16, whose time is that of its many inputs."""
SPLIT_POSITIONS = 8_192
"""Most positions of all images with which a convolution is split: more occupy all multiprocessors without it."""
ABOUT_EQUAL = 1.1
"""Largest ratio to the fastest time on another GPU with which tilings stay in the H200's order: the scaled prediction
is no more exact than that, and architectures with one tiling share its templates."""


class Ranking(Protocol):
    """Puts the tilings of a layer in order: `ranking_of`, or something that keeps its answers."""

    def __call__(self, question: RankingQuestion) -> Iterable[Tiling]:
        """Tilings that fit, the one predicted to be fastest first; the answer depends on the question alone."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A tiling that fits, and its predictions."""

    tiling: Tiling
    microseconds: float
    instructions: float
    """Instructions of all its streams."""
    excess: float = 1.0
    """Its instructions over the most that its layer should have; at least 1."""

    @property
    def cost(self) -> float:
        """Microseconds, more for a tiling with too much code."""
        return self.microseconds * self.excess


def ranking_of(question: RankingQuestion) -> tuple[Tiling, ...]:
    """The tilings of a layer that fit, the one predicted to be fastest first."""
    layer = lower(question.spec)
    return with_tables(layer, question, with_direct(layer, question, _of_code(layer, question)))


def _of_code(layer: Lowered[LayerSpec], question: RankingQuestion) -> tuple[Tiling, ...]:
    """The tilings whose weights are code, from shared memory, those about as fast as the first in the H200's order."""
    if not question.clusters:
        ranked = _staged(question.without_options)
    elif layer.geometry.is_linear and question.batch > FEW_ROWS:
        ranked = _staged(replace(question, tables=False))
    elif _may_be_split(layer, question.batch):
        ranked = _with_clusters(question)
    else:
        ranked = _with_place(question.without_options)
    tilings = tuple(each.tiling for each in ranked)
    if question.device == REFERENCE or not ranked:
        return tilings
    order = {tiling: i for i, tiling in enumerate(_of_code(layer, replace(question, device=REFERENCE)))}
    equal = sum(each.cost <= ABOUT_EQUAL * ranked[0].cost for each in ranked)
    return (*sorted(tilings[:equal], key=lambda each: order.get(each, len(order))), *tilings[equal:])


def _may_be_split(layer: Lowered[LayerSpec], batch: int) -> bool:
    """Whether to predict tilings with clusters: those of float32 take as much time here as all others together."""
    geometry = layer.geometry
    if geometry.is_linear or layer.spec.data_type == "float16":
        return True
    return batch * geometry.positions_height * geometry.positions_width <= SPLIT_POSITIONS


@lru_cache(maxsize=1024)
def _staged(question: RankingQuestion) -> tuple[Ranked, ...]:
    """Tilings without clusters, with the blocks of one K group after the other, and those of large blocks."""
    batch, density, device = question.batch, question.density, question.device
    return _in_order(
        Ranked(layer.tiling, predict_microseconds(layer, batch, density, device=device, stream=stream), size, excess)
        for layer, stream, size, excess in within_limits(replace(question, device=REFERENCE))
        if block_fits(layer, device)
    )


@lru_cache(maxsize=1024)
def _with_place(question: RankingQuestion) -> tuple[Ranked, ...]:
    """Tilings without clusters, and those of a convolution predicted to be fastest in the order `place` in it too.

    They make a layer one kernel: only for architectures that need no ptxas for it, as those with clusters do not.
    """
    ranked = _staged(question)
    if not isinstance(question.spec, Conv2d):
        return ranked
    batch, density, device = question.batch, question.density, question.device
    found = [
        Ranked(
            replace(layer.tiling, order="place"),
            predict_microseconds(layer, batch, density, device=device, order="place", stream=stream),
            size,
            excess,
        )
        for layer, stream, size, excess in within_limits(replace(question, device=REFERENCE))
        if layer.streams.count > 1 and size <= CLUSTERED_INSTRUCTIONS
    ]
    return _in_order((*ranked, *_in_order(found)[:MOST_BY_PLACE]))


def _in_order(found: Iterable[Ranked]) -> tuple[Ranked, ...]:
    return tuple(sorted(found, key=lambda each: each.cost))


@lru_cache(maxsize=1024)
def _with_clusters(question: RankingQuestion) -> tuple[Ranked, ...]:
    """Tilings with clusters among the others."""
    spec, batch, density, device = question.spec, question.batch, question.density, question.device
    layer = lower(spec)
    others = _with_place(question.without_options)
    split = [layer.tiled(replace(each, accumulate=question.accumulate)) for each in candidates(layer, "clusters")]
    packed = spec.data_type == "float16" and isinstance(spec, Conv2d)
    if packed:
        split += [layer.tiled(replace(each.tiling, order="place")) for each in split if each.streams.groups > 1]
    sizes = [
        (each, _instructions(each, density)) for each in split if comes_out_even(each) and block_fits(each, device)
    ]
    more = SPLIT_POINT_CODE if packed and layer.geometry.taps == 1 else SPLIT_CODE
    limit = max(LAYER_INSTRUCTIONS, more * min((each.instructions for each in others), default=math.inf))
    return _in_order(
        (
            *(each for each in others if each.instructions <= limit),
            *(
                Ranked(each.tiling, predict_microseconds(each, batch, density, device=device), size)
                for each, size in sizes
                if size <= limit
            ),
        )
    )


def _instructions(layer: AnyTiled, density: float) -> float:
    """Instructions of all streams of a layer."""
    return Stream.of(layer.workload, density).code * layer.workload.streams
