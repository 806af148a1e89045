"""The ranking of tilings whose weights are a table, among the others of a layer."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.kernels import Lowered, lower
from codegen.selection.candidates import candidates
from codegen.selection.cost_model import predict_microseconds
from codegen.selection.feasibility import block_fits, comes_out_even
from codegen.selection.question import RankingQuestion
from codegen.target.device_model import DeviceModel

TABLE_GAIN = 1.2
"""Predicted speed-up over code from which a table comes first: caches hold the code of a small layer."""


def with_tables(
    layer: Lowered[LayerSpec], question: RankingQuestion, ranking: tuple[Tiling, ...]
) -> tuple[Tiling, ...]:
    """The ranking of a layer, with the tilings whose weights are a table."""
    batch, density, device = question.batch, question.density, question.device
    if not layer.geometry.is_linear:
        few = question.clusters and batch == 1
        return (*ranking, *_of_convolution(layer.spec, density, device)) if few else ranking
    tilings = [replace(tiling, accumulate=question.accumulate) for tiling in candidates(layer, "tables")]
    times = {
        tiling: predict_microseconds(layer.tiled(tiling), batch, density, device=device)
        for tiling in (*tilings, *ranking[:1])
    }
    tables = sorted(tilings, key=lambda tiling: times[tiling])
    if ranking and TABLE_GAIN * times[tables[0]] > times[ranking[0]]:
        return (*ranking, *tables)
    return (*tables, *ranking)


@lru_cache(maxsize=1024)
def _of_convolution(spec: LayerSpec, density: float, device: DeviceModel) -> tuple[Tiling, ...]:
    """Tables of a convolution, the one predicted to be fastest first; predictions do not compare them with code."""
    layer = lower(spec)
    every = map(layer.tiled, candidates(layer, "tables"))
    times = {
        each.tiling: predict_microseconds(each, 1, density, device=device)
        for each in every
        if comes_out_even(each) and block_fits(each, device)
    }
    return tuple(sorted(times, key=lambda tiling: times[tiling]))
