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

TABLE_GAIN = 1.2
"""Predicted speed-up over code from which a table comes first: caches hold the code of a small layer."""
HALF_TABLE_GAIN = 1.7
"""Predicted speed-up from which a table of a 16-bit convolution comes first: measured, at 1.62 code was faster."""
HALF_TABLE_IMAGES = 2
"""Most images of a launch with which tables of such a convolution are tried: each image reads the table again."""


def with_tables(
    layer: Lowered[LayerSpec], question: RankingQuestion, ranking: tuple[Tiling, ...]
) -> tuple[Tiling, ...]:
    """The ranking of a layer, with the tilings whose weights are a table."""
    batch, density, device = question.batch, question.density, question.device
    if not layer.geometry.is_linear:
        half = layer.spec.data_type != "float32"
        if not question.clusters or batch > (HALF_TABLE_IMAGES if half else 1):
            return ranking
        found = tuple(replace(each, accumulate=question.accumulate) for each in _of_convolution(question))
        if half and found and ranking:
            table, code = (
                predict_microseconds(layer.tiled(each[0]), batch, density, device=device) for each in (found, ranking)
            )
            if HALF_TABLE_GAIN * table <= code:
                return (*found, *ranking)
        return (*ranking, *found)
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
def _of_convolution(question: RankingQuestion) -> tuple[Tiling, ...]:
    """Tables of a convolution, the one predicted to be fastest first."""
    layer, device = lower(question.spec), question.device
    every = map(layer.tiled, candidates(layer, "tables"))
    times = {
        each.tiling: predict_microseconds(each, question.batch, question.density, device=device)
        for each in every
        if comes_out_even(each) and block_fits(each, device)
    }
    return tuple(sorted(times, key=lambda tiling: times[tiling]))
