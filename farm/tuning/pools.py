"""Which layers compute the max pool behind them: those that are predicted to be faster than layer and pool apart."""

from __future__ import annotations

from codegen.errors import TilingError
from codegen.layers import Layer
from codegen.operators import tiled
from codegen.prediction import pool_microseconds, predict_microseconds
from codegen.spec import is_pooled
from farm.jobs import BuildOptions
from farm.tuning.book import TuningBook


def pooled_where_faster(layer: Layer, book: TuningBook, options: BuildOptions) -> Layer:
    """The layer with its pool if that is faster, over all of the job's architectures; else as it is."""
    if layer.pool is None:
        return layer
    joined = layer.with_pool()
    try:
        return min(layer, joined, key=lambda each: _microseconds(each, book, options))
    except TilingError:  # no tiling has whole windows, or the layer has none at all
        return layer


def _microseconds(layer: Layer, book: TuningBook, options: BuildOptions) -> float:
    """With the pool behind it, if that is a kernel of its own; of all architectures together."""
    spec = layer.spec
    density = layer.weights.nonzeros / spec.weights_count
    tilings = book.tilings(spec, options.batch, layer.weights.nonzeros_per_kernel, options)
    joined = spec if layer.pool is None else layer.with_pool().spec
    alone = pool_microseconds(joined, options.batch) if is_pooled(joined) and joined is not spec else 0.0
    return sum(alone + predict_microseconds(tiled(spec, each), options.batch, density) for each, _ in tilings)
