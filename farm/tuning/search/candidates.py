"""The tilings of many layers by the cost model, which takes seconds for a large one: in turn, or side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Accumulator, Tiling
from codegen.selection.choose import ranked_tilings
from codegen.target.arch import has_clusters
from farm.cuda.measure.workload import Case
from farm.executors.processes import end_with_parent


@dataclass(frozen=True, eq=False)
class Unranked:
    """What a layer's ranking depends on: not its weights, but how many there are."""

    spec: LayerSpec
    images: int
    nonzeros: NDArray[np.integer]
    """Per kernel [K]."""
    accumulate: Accumulator
    clusters: bool

    @staticmethod
    def of(case: Case, arch: str, accumulate: Accumulator) -> Unranked:
        return Unranked(
            case.spec, case.images, case.weights.nonzeros_per_output, accumulate, clusters=has_clusters(arch)
        )


Ranker = Callable[[Sequence[Unranked]], Iterable[tuple[Tiling, ...]]]
"""Gives each layer's tilings, the one predicted to be fastest first; empty where nothing fits."""


def in_turn(layers: Sequence[Unranked]) -> Iterable[tuple[Tiling, ...]]:
    """See Ranker."""
    return map(_ranked, layers)


@dataclass(frozen=True)
class SideBySide:
    """A Ranker that takes at most so many processes, which are gone when it is done."""

    processes: int

    def __call__(self, layers: Sequence[Unranked]) -> Iterable[tuple[Tiling, ...]]:
        count = min(self.processes, len(layers))
        if count < 2:
            return in_turn(layers)
        # A process that is forked from one with a GPU may hang.
        with ProcessPoolExecutor(count, get_context("spawn"), end_with_parent, (os.getpid(),)) as pool:
            return list(pool.map(_ranked, layers))


def _ranked(layer: Unranked) -> tuple[Tiling, ...]:
    return ranked_tilings(layer.spec, layer.images, layer.nonzeros, layer.accumulate, clusters=layer.clusters)
