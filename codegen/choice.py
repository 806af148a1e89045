"""Chooses the tiling of a layer: every candidate that fits, the one predicted to be fastest; and cuts it into parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from codegen.code_size import layer_instructions, stream_instructions, stream_nonzeros
from codegen.errors import TilingError
from codegen.limits import block_fits, comes_out_even
from codegen.operators import AnyTiled, Lowered, lower, tiled
from codegen.operators.geometry import Geometry
from codegen.operators.pooling import has_whole_windows
from codegen.operators.stream import PRODUCTS_TOGETHER
from codegen.operators.work import SHARED_BYTES
from codegen.parts import cut
from codegen.prediction import Stream, predict_microseconds
from codegen.spec import Conv2d, LayerSpec, is_pooled, prepares_inputs
from codegen.tables import with_tables
from codegen.tiling import Accumulator, Form, Part, Tiling

STREAM_MULTIPLY_ADDS = 20_000
"""Most multiply-adds of one K group: beyond, the time of ptxas grows faster than linearly."""
STREAM_BYTES = 500_000
"""Machine code that one block runs, at most."""
UNEVEN = 1.25
"""How much more than those limits the largest K group of weights pruned unevenly may have."""
LOOPED_STREAMS = 2.5
"""How much more a stream may have whose chunks end in loops: ptxas takes them one by one (13 s for 40,000)."""
LAYER_INSTRUCTIONS = 60_000
"""Most instructions of a layer, over all its kernels: tilings with more are left out if there are others."""
MORE_CODE, MORE_PACKED_CODE = 1.2, 1.6
"""How much more code than the smallest such a layer may have; and a convolution of float16, of which half as many
threads follow each stream: K groups of fewer kernels are more code in all, and less for each of them to wait for."""
CODE_BYTES = 16_000_000
"""Machine code of one layer, unless the caller says otherwise."""
UNSTAGED_DENSITY = 0.05
"""Up to which tilings without stages are looked at: of denser layers every input is used often."""
UNSTAGED_GAIN = 1.25
"""How much faster such a tiling must be predicted than all others: its terms are not fitted."""
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
BATCH_BANDS = (1, 4, 16, 64, 256, 1024, 4096)
DENSITY_BANDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)


def choose_tiling(
    spec: LayerSpec,
    batch: int,
    nonzeros: NDArray[np.integer],
    *,
    form: Form = "rolled",
    accumulate: Accumulator = "float32",
    code_limit_bytes: int = CODE_BYTES,
    clusters: bool = False,
    tables: bool = True,
) -> Tiling:
    """The tiling of a layer with these non-zeros per kernel [K], for launches of about this batch; deterministic.

    `accumulate` is for float16 layers: what sums of many products are added up in. `clusters`: whether the architecture
    has them; `tables`: whether the weights of a layer may be one.

    Batch and density go in by bands, so that checkpoints of one pruning sweep share their templates; in float16, those
    with kernels of more non-zeros than are added up in float16 have others than those without. Raises TilingError if
    nothing fits: the layer's code is too large with any tiling, or a kernel larger than shared memory, or the form
    does not do for the layer.
    """
    layer = lower(spec)
    _check_form(layer, form)
    least_bytes = math.inf
    special = {"clusters": clusters and form == "rolled", "tables": tables and form == "rolled"}
    for tiling, code_bytes in _fitting(layer, batch, nonzeros, accumulate, **special):
        if code_bytes <= code_limit_bytes:
            return tiling if form == "rolled" else replace(tiling, form=form)
        least_bytes = min(least_bytes, code_bytes)
    if least_bytes < math.inf:
        each, needed = least_bytes / max(1, int(nonzeros.sum())), _size(least_bytes)
        raise TilingError(
            f"its code would be {needed}, {each:.0f} bytes a non-zero weight, and the limit is "
            f"{_size(code_limit_bytes)}: raise it with --max-code-size {needed.replace(' ', '')}, "
            "or prune the layer further"
        )
    raise TilingError(
        f"its kernel is too large: the input of even one output row does not fit the {SHARED_BYTES // 1024} KiB of "
        "shared memory"
    )


def ranked_tilings(
    spec: LayerSpec,
    batch: int,
    nonzeros: NDArray[np.integer],
    accumulate: Accumulator = "float32",
    *,
    code_limit_bytes: int = CODE_BYTES,
    clusters: bool = False,
    tables: bool = True,
) -> tuple[Tiling, ...]:
    """All tilings that fit a layer with these non-zeros per kernel [K], the one predicted to be fastest first.

    That is the one that `choose_tiling` takes. Empty where that raises TilingError.
    """
    fitting = _fitting(lower(spec), batch, nonzeros, accumulate, clusters=clusters, tables=tables)
    return tuple(dict.fromkeys(tiling for tiling, code_bytes in fitting if code_bytes <= code_limit_bytes))


def misfit_of(
    spec: LayerSpec, tiling: Tiling, nonzeros: NDArray[np.integer], *, code_limit_bytes: int = CODE_BYTES
) -> str:
    """Why a given tiling does not do for a layer with these non-zeros per kernel, in words; empty if it does."""
    layer = tiled(spec, tiling)
    if not has_whole_windows(layer):
        return "its blocks have no whole windows of the pool"
    within = comes_out_even(layer) and block_fits(layer)
    if not (within or tiling in _last_resort(layer.layer, tiling.accumulate)):
        return "it needs more threads, registers or shared memory than there are"
    if spec.data_type == "float16" and _too_long(tiling, nonzeros):
        return "a kernel of these weights has more products than the blocks of its cluster add up in float16"
    streams = layer_instructions(layer, nonzeros)
    if not _streams_fit(layer, nonzeros, streams):
        return "a K group of these weights has too much code for it"
    code_bytes = 16 * float(streams.sum())
    if code_bytes > code_limit_bytes:
        return f"the code would be {_size(code_bytes)} and the limit is {_size(code_limit_bytes)}"
    return ""


def _size(count_bytes: float) -> str:
    """In whole KB or MB, rounded up, so that a limit of that size suffices."""
    unit, name = (1e6, "MB") if count_bytes >= 1e6 else (1e3, "KB")
    return f"{math.ceil(count_bytes / unit)} {name}"


def bands_of(spec: LayerSpec, batch: int, nonzeros: int) -> tuple[int, float]:
    """Bands of batch size and density (non-zeros / weights): layers in the same bands get the same tiling."""
    return _batch_band(batch), _density_band(nonzeros / spec.weights_count)


def accumulator_of(spec: LayerSpec, accumulate: Accumulator, nonzeros: NDArray[np.integer]) -> Accumulator:
    """What the sums of a layer with these non-zeros per kernel are added up in: float16 is for float16 layers only.

    Such a layer's sums are made in float16 throughout, whatever is asked for, if each has no more products than
    are added up in float16 anyway.
    """
    if spec.data_type != "float16":
        return "float32"
    return "float16" if int(nonzeros.max()) <= PRODUCTS_TOGETHER else accumulate


def _fitting(
    layer: Lowered[LayerSpec],
    batch: int,
    nonzeros: NDArray[np.integer],
    accumulate: Accumulator,
    *,
    clusters: bool,
    tables: bool,
) -> Iterator[tuple[Tiling, float]]:
    """Tilings that do for these very weights, the one predicted to be fastest first, and the bytes of their code."""
    kind = accumulator_of(layer.spec, accumulate, nonzeros)
    bands = bands_of(layer.spec, batch, int(nonzeros.sum()))
    ranking = _ranking(layer.spec, *bands, kind)
    behind: tuple[Tiling, ...] = ()
    if clusters and layer.spec.data_type == "float16":
        behind = tuple(each for each in _split_halves(layer.spec, kind) if not _too_long(each, nonzeros))
    elif clusters and layer.stationary is not None and _may_be_split(layer.geometry, bands[0]):
        ranking = _with_clusters(layer.spec, *bands, ranking)
    ranking = (*_with_unstaged(layer, *bands, ranking), *behind)
    if tables and bands[0] <= TABLE_ROWS and bands[1] <= TABLE_DENSITY:
        ranking = with_tables(layer, *bands, kind, ranking, clusters=clusters)
    for tiling in (*ranking, *_last_resort(layer, kind)):
        divided = layer.tiled(tiling)
        streams = layer_instructions(divided, nonzeros)
        if _streams_fit(divided, nonzeros, streams):
            yield tiling, 16 * float(streams.sum())


def _may_be_split(geometry: Geometry, batch: int) -> bool:
    """Whether tilings with clusters are looked at: they cost as much time here as all others together."""
    if geometry.is_linear:
        return batch <= SPLIT_ROWS
    return batch * geometry.positions_height * geometry.positions_width <= SPLIT_POSITIONS


@lru_cache(maxsize=1024)
def _split_halves(spec: LayerSpec, accumulate: Accumulator) -> tuple[Tiling, ...]:
    """Tilings of a float16 layer with clusters: for tuning and its records, as no prediction is fitted to them."""
    layer = lower(spec)
    tilings = layer.stationary.candidates(layer) if layer.stationary else ()
    every = (layer.tiled(replace(tiling, accumulate=accumulate)) for tiling in tilings)
    return tuple(each.tiling for each in every if comes_out_even(each) and block_fits(each))


def _too_long(tiling: Tiling, nonzeros: NDArray[np.integer]) -> bool:
    """Whether the blocks of a cluster have more products of a kernel each than are added up in float16."""
    kept = tiling.cluster > 1 and tiling.accumulate == "float32"
    return kept and int(nonzeros.max()) > PRODUCTS_TOGETHER * tiling.cluster


def choose_parts(spec: LayerSpec, tiling: Tiling, nonzeros: NDArray[np.integer]) -> tuple[Part, ...]:
    """Cuts the K groups of a layer into kernels that ptxas does in seconds: as few as that takes, about even."""
    streams = stream_instructions(spec, tiling, nonzeros)
    # Listed: one kernel, whose blocks fill the GPU; by place, the blocks of all K groups are side by side.
    whole = tiling.form != "rolled" or tiling.listed or tiling.order != "group"
    return (Part(0, len(streams)),) if whole else cut(streams, tiling.cluster)


def _check_form(layer: Lowered[LayerSpec], form: Form) -> None:
    geometry, spec = layer.geometry, layer.spec
    ordinary = geometry.groups == 1 and geometry.phase_count == 1 and spec.data_type == "float32"
    alone = not prepares_inputs(spec) and not is_pooled(spec)
    if form == "full" and not (ordinary and isinstance(spec, Conv2d) and alone):
        raise TilingError(
            "the full form is made of ordinary float32 convolutions in one group only, without gates, without a "
            "normalisation before and a pool behind them: leave out --template full"
        )


def _batch_band(batch: int) -> int:
    return min(BATCH_BANDS, key=lambda band: abs(math.log(band / batch)))


def _density_band(density: float) -> float:
    # Pruning to 0.9 leaves a few weights more or less than a tenth: those belong to the same band.
    return next((band for band in DENSITY_BANDS if density <= band * 1.05), 1.0)


@lru_cache(maxsize=1024)
def _ranking(spec: LayerSpec, batch: int, density: float, accumulate: Accumulator) -> tuple[Tiling, ...]:
    layer = lower(spec)
    sizes: list[tuple[AnyTiled, float]] = []
    packed = spec.data_type == "float16" and not layer.geometry.is_linear
    limit, more = math.inf, MORE_PACKED_CODE if packed else MORE_CODE
    for candidate in layer.candidates():
        tiling = candidate if candidate.accumulate == accumulate else replace(candidate, accumulate=accumulate)
        divided = layer.tiled(tiling)
        if not comes_out_even(divided):
            continue
        stream = Stream.of(divided.work, density)
        size = stream.code * divided.work.streams
        if size <= limit and _stream_fits(divided, stream) and block_fits(divided):
            sizes.append((divided, size))
            # A layer that is larger whatever its tiling is given the smaller ones.
            limit = min(limit, max(LAYER_INSTRUCTIONS, more * size))
    times = {each.tiling: predict_microseconds(each, batch, density) for each, size in sizes if size <= limit}
    return tuple(sorted(times, key=lambda tiling: times[tiling]))


def _with_unstaged(
    layer: Lowered[LayerSpec], batch: int, density: float, ranking: tuple[Tiling, ...]
) -> tuple[Tiling, ...]:
    """The ranking with the tilings without stages before it, where these are clearly faster, or behind it."""
    unstaged = () if layer.unstaged is None else _unstaged(layer.spec, batch, density)
    if not unstaged or not ranking:
        return (*unstaged, *ranking)
    best, other = (predict_microseconds(layer.tiled(each[0]), batch, density) for each in (unstaged, ranking))
    return (*unstaged, *ranking) if UNSTAGED_GAIN * best <= other else (*ranking, *unstaged)


@lru_cache(maxsize=1024)
def _unstaged(spec: LayerSpec, batch: int, density: float) -> tuple[Tiling, ...]:
    """Tilings without stages that fit the layer, the one predicted to be fastest first."""
    layer = lower(spec)
    if layer.unstaged is None or density > UNSTAGED_DENSITY:
        return ()
    times = {
        tiling: predict_microseconds(divided, batch, density)
        for tiling in layer.unstaged.candidates(layer)
        if comes_out_even(divided := layer.tiled(tiling)) and block_fits(divided)
    }
    return tuple(sorted(times, key=lambda tiling: times[tiling]))


@lru_cache(maxsize=1024)
def _with_clusters(spec: LayerSpec, batch: int, density: float, ranking: tuple[Tiling, ...]) -> tuple[Tiling, ...]:
    """The ranking with the tilings with clusters among it."""
    layer = lower(spec)
    split = [layer.tiled(tiling) for tiling in (layer.stationary.candidates(layer) if layer.stationary else ())]
    every = [layer.tiled(tiling) for tiling in ranking]
    every += [each for each in split if comes_out_even(each) and block_fits(each)]
    sizes = [Stream.of(each.work, density).code * each.work.streams for each in every]
    limit = max(LAYER_INSTRUCTIONS, SPLIT_CODE * min(sizes[: len(ranking)], default=math.inf))
    fitting = [each for each, size in zip(every, sizes, strict=True) if size <= limit]
    times = {each.tiling: predict_microseconds(each, batch, density) for each in fitting}
    return tuple(sorted(times, key=lambda tiling: times[tiling]))


def _last_resort(layer: Lowered[LayerSpec], accumulate: Accumulator) -> list[Tiling]:
    tilings = [replace(tiling, accumulate=accumulate) for tiling in layer.last_resort()]
    return [tiling for tiling in tilings if layer.tiled(tiling).launch.shared_bytes <= SHARED_BYTES]


def _stream_fits(layer: AnyTiled, stream: Stream) -> bool:
    """Whether an average K group is within the limits of one."""
    multiply_adds, code_bytes = _stream_limits(layer)
    return stream.multiply_adds <= multiply_adds and stream.code_bytes <= code_bytes


def _streams_fit(layer: AnyTiled, nonzeros: NDArray[np.integer], streams: NDArray[np.float64]) -> bool:
    if layer.tiling.group_kernels == 1 or layer.tiling.form == "table":
        return True  # there is nothing smaller, or no code of weights
    largest = int(stream_nonzeros(layer, nonzeros).max()) * layer.tiling.rows
    multiply_adds, code_bytes = _stream_limits(layer)
    return largest <= UNEVEN * multiply_adds and 16 * float(streams.max()) <= UNEVEN * code_bytes


def _stream_limits(layer: AnyTiled) -> tuple[float, float]:
    """Multiply-adds and bytes of a K group, at most."""
    more = LOOPED_STREAMS if layer.work.loop_instructions else 1
    return more * STREAM_MULTIPLY_ADDS, more * STREAM_BYTES
