"""Alternatives to the staged tilings in a layer's ranking: direct global loads, and weights in a table."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.kernels import Lowered, lower
from codegen.selection.candidates import Family, candidates
from codegen.selection.cost_model import predict_microseconds
from codegen.selection.feasibility import block_fits, comes_out_even
from codegen.selection.question import RankingQuestion

DIRECT_DENSITY = 0.05
"""Highest density at which direct_global is predicted: a denser layer uses every input often."""
DIRECT_GAIN = 1.25
"""Predicted speed-up from which direct_global comes first: its coefficients are not fitted."""
TABLE_ROWS = 16
"""Largest band of rows or images with which weights may be a table: with more, each is used more often."""
LARGE_TABLE, LARGE_TABLE_ROWS = 1_000_000, 8
"""Non-zeros of a 16-bit linear layer, and the largest band of rows with which more of them may be a table: PyTorch's
dense layer is faster with 16 (4096 to 4096: 13.6 us for 18.9), ours is with smaller ones."""
TABLE_DENSITY = 0.5
"""Highest density of a table: beyond, with its columns, it would be as large as all weights."""
TABLE_GAIN = 1.2
"""Predicted speed-up over code from which a table comes first: caches hold the code of a small layer."""
HALF_TABLE_GAIN = 1.7
"""Predicted speed-up from which a table of a 16-bit convolution comes first: measured, at 1.62 code was faster."""
HALF_TABLE_IMAGES = 2
"""Most images of a launch with which tables of such a convolution are tried: each image reads the table again."""


def with_direct(
    layer: Lowered[LayerSpec], question: RankingQuestion, ranking: tuple[Tiling, ...]
) -> tuple[Tiling, ...]:
    """The ranking of a layer, with its tilings of direct_global."""
    if question.density > DIRECT_DENSITY:
        return ranking
    return _merged(layer, question, _fastest(question.without_options, "direct"), DIRECT_GAIN, ranking)


def with_tables(
    layer: Lowered[LayerSpec], question: RankingQuestion, ranking: tuple[Tiling, ...]
) -> tuple[Tiling, ...]:
    """The ranking of a layer, with its tilings whose weights are a table."""
    if not _may_be_table(layer, question):
        return ranking
    fastest = _fastest(question.without_options, "tables")
    tables = tuple(replace(each, accumulate=question.accumulate) for each in fastest)
    return _merged(layer, question, tables, _table_gain(layer), ranking)


def _may_be_table(layer: Lowered[LayerSpec], question: RankingQuestion) -> bool:
    """Whether the layer is worth a prediction with its weights in a table."""
    is_float32 = layer.spec.data_type == "float32"
    is_large = not is_float32 and question.density * layer.spec.weights_count > LARGE_TABLE
    most_rows = LARGE_TABLE_ROWS if is_large else TABLE_ROWS
    if not question.tables or question.batch > most_rows or question.density > TABLE_DENSITY:
        return False
    most_images = 1 if is_float32 else HALF_TABLE_IMAGES
    return layer.geometry.is_linear or (question.clusters and question.batch <= most_images)


def _table_gain(layer: Lowered[LayerSpec]) -> float:
    """Predicted speed-up from which a table comes first: that of a convolution in float32 never does."""
    if layer.geometry.is_linear:
        return TABLE_GAIN
    return math.inf if layer.spec.data_type == "float32" else HALF_TABLE_GAIN


def _merged(
    layer: Lowered[LayerSpec],
    question: RankingQuestion,
    alternatives: tuple[Tiling, ...],
    gain: float,
    ranking: tuple[Tiling, ...],
) -> tuple[Tiling, ...]:
    """The ranking with its alternatives: first if the best of them is faster by this factor, otherwise last."""
    if not alternatives or not ranking:
        return (*alternatives, *ranking)
    alternative, first = (
        predict_microseconds(layer.tiled(each[0]), question.batch, question.density, device=question.device)
        for each in (alternatives, ranking)
    )
    return (*alternatives, *ranking) if gain * alternative <= first else (*ranking, *alternatives)


@lru_cache(maxsize=1024)
def _fastest(question: RankingQuestion, family: Family) -> tuple[Tiling, ...]:
    """Tilings of a family that fit the layer, the one predicted to be fastest first."""
    layer, device = lower(question.spec), question.device
    times = {
        each.tiling: predict_microseconds(each, question.batch, question.density, device=device)
        for each in map(layer.tiled, candidates(layer, family))
        if comes_out_even(each) and block_fits(each, device)
    }
    return tuple(sorted(times, key=lambda tiling: times[tiling]))
