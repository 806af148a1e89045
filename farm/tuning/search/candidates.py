"""Rankings of many layers by the cost model, in one process or in parallel; a large layer takes seconds."""

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
from codegen.target.device_model import DeviceModel
from farm.cuda.measure.workload import Case
from farm.executors.processes import end_with_parent


@dataclass(frozen=True, eq=False)
class Unranked:
    """Input of a layer's ranking: its shape and the counts of its weights."""

    spec: LayerSpec
    images: int
    nonzeros: NDArray[np.integer]
    """Non-zeros per output channel [K]."""
    accumulate: Accumulator
    clusters: bool
    device: DeviceModel

    @staticmethod
    def of(case: Case, arch: str, accumulate: Accumulator, device: DeviceModel) -> Unranked:
        nonzeros = case.weights.nonzeros_per_output
        return Unranked(case.spec, case.images, nonzeros, accumulate, has_clusters(arch), device)


Ranker = Callable[[Sequence[Unranked]], Iterable[tuple[Tiling, ...]]]
"""Ranks each layer's tilings, fastest predicted first; empty where none fits."""


def serial_ranker(layers: Sequence[Unranked]) -> Iterable[tuple[Tiling, ...]]:
    """Ranker in this process."""
    return map(_ranked, layers)


@dataclass(frozen=True)
class ParallelRanker:
    """Ranker with up to `processes` worker processes, which end with it."""

    processes: int

    def __call__(self, layers: Sequence[Unranked]) -> Iterable[tuple[Tiling, ...]]:
        count = min(self.processes, len(layers))
        if count < 2:
            return serial_ranker(layers)
        # Spawned: a process forked from one with a CUDA context may hang.
        with ProcessPoolExecutor(count, get_context("spawn"), end_with_parent, (os.getpid(),)) as pool:
            return list(pool.map(_ranked, layers))


def _ranked(layer: Unranked) -> tuple[Tiling, ...]:
    return ranked_tilings(
        layer.spec, layer.images, layer.nonzeros, layer.accumulate, clusters=layer.clusters, device=layer.device
    )
