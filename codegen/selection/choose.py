"""The choice of a layer's tiling: the candidate that fits and is predicted to be fastest; and its parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from codegen.errors import TilingError
from codegen.ir.layer_spec import Conv2d, LayerSpec, is_pooled, prepares_inputs
from codegen.ir.tiling import Accumulator, Form, Part, Tiling
from codegen.kernels import AnyTiled, Lowered, lower, tiled
from codegen.kernels.max_pool import has_whole_windows
from codegen.kernels.weight_stream import PRODUCTS_TOGETHER
from codegen.kernels.workload import SHARED_BYTES
from codegen.selection.candidates import last_resort
from codegen.selection.code_limits import stream_limits
from codegen.selection.code_size import layer_instructions, stream_instructions, stream_nonzeros
from codegen.selection.feasibility import block_fits, comes_out_even
from codegen.selection.kernel_split import cut
from codegen.selection.question import RankingQuestion
from codegen.selection.ranking import Ranking, ranking_of
from codegen.target.device_model import REFERENCE, DeviceModel

UNEVEN = 1.25
"""Factor on the limits of a K group for the largest one of unevenly pruned weights."""
CODE_BYTES = 16_000_000
"""Default limit of the machine code of one layer."""
BATCH_BANDS = (*(1 << i for i in range(18)), *(49 << i for i in range(2, 13)))
"""Powers of two and, beyond 128, the rows of maps of 7 x 7, 14 x 14 and so on: one tile more may be a wave more."""
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
    device: DeviceModel = REFERENCE,
    ranking: Ranking = ranking_of,
) -> Tiling:
    """The tiling of a layer with these non-zeros per output channel [K], for about this batch; deterministic.

    `accumulate`: the type in which float16 layers add up sums of many products. `clusters`: whether the architecture
    has clusters. `tables`: whether weights may be a table. `device`: the GPU to be fast on. `ranking`: orders the
    layer's tilings.

    Only bands of batch and density count, so that the checkpoints of a pruning sweep share their templates; in float16
    it also counts whether an output channel has more non-zeros than are added up in float16. Raises TilingError if the
    layer's code is too large with every tiling, a filter is too large for shared memory, or the form is not for the
    layer.
    """
    layer = lower(spec)
    _check_form(layer, form)
    least_bytes = math.inf
    question = _question(
        layer.spec,
        batch,
        nonzeros,
        accumulate,
        clusters=clusters and form == "rolled",
        tables=tables and form == "rolled",
        device=device,
    )
    for tiling, code_bytes in _fitting(layer, question, nonzeros, ranking):
        if form == "full" and tiling.kernel != "conv2d":
            continue
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
        f"its filter is too large: the input of one output row does not fit the {SHARED_BYTES // 1024} KiB of "
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
    device: DeviceModel = REFERENCE,
) -> tuple[Tiling, ...]:
    """All tilings that fit a layer with these non-zeros per output channel [K], the one predicted to be fastest first.

    `choose_tiling` takes the first. Empty if that raises TilingError.
    """
    layer = lower(spec)
    question = _question(layer.spec, batch, nonzeros, accumulate, clusters=clusters, tables=tables, device=device)
    fitting = _fitting(layer, question, nonzeros)
    return tuple(dict.fromkeys(tiling for tiling, code_bytes in fitting if code_bytes <= code_limit_bytes))


def misfit_of(
    spec: LayerSpec,
    tiling: Tiling,
    nonzeros: NDArray[np.integer],
    device: DeviceModel = REFERENCE,
    *,
    code_limit_bytes: int = CODE_BYTES,
) -> str:
    """Why a measured tiling does not fit a layer with these non-zeros per output channel; empty if it fits."""
    try:
        layer = tiled(spec, tiling)
    except TilingError as error:
        return str(error)
    if not has_whole_windows(layer):
        return "its blocks have no whole windows of the pool"
    within = comes_out_even(layer) and block_fits(layer, device, measured=True)
    if not (within or tiling in _last_resort(layer.layer, tiling.accumulate)):
        return "it needs more threads, registers or shared memory than there are"
    if spec.data_type == "float16" and _too_long(tiling, nonzeros):
        return "an output channel has more products than the blocks of a cluster add up in float16"
    streams = layer_instructions(layer, nonzeros)
    if not _streams_fit(layer, nonzeros, streams):
        return "a K group of these weights has too much code for it"
    code_bytes = 16 * float(streams.sum())
    if code_bytes > code_limit_bytes:
        return f"the code would be {_size(code_bytes)} and the limit is {_size(code_limit_bytes)}"
    return ""


def _size(count_bytes: float) -> str:
    """A size in whole KB or MB, rounded up, so that a limit of that size suffices."""
    unit, name = (1e6, "MB") if count_bytes >= 1e6 else (1e3, "KB")
    return f"{math.ceil(count_bytes / unit)} {name}"


def bands_of(spec: LayerSpec, batch: int, nonzeros: int) -> tuple[int, float]:
    """Bands of batch size and density (non-zeros / weights): layers in the same bands get the same tiling."""
    return batch_band(batch), _density_band(nonzeros / spec.weights_count)


def batch_band(batch: int) -> int:
    """The batch size, among those that bands are named after, that is nearest by ratio."""
    return min(BATCH_BANDS, key=lambda band: abs(math.log(band / batch)))


def accumulator_of(spec: LayerSpec, accumulate: Accumulator, nonzeros: NDArray[np.integer]) -> Accumulator:
    """The type in which a layer with these non-zeros per output channel adds up its sums.

    float16 is for float16 layers only. It is taken, even if float32 is asked for, when no sum has more products than
    are added up in float16 anyway.
    """
    if spec.data_type != "float16":
        return "float32"
    return "float16" if int(nonzeros.max()) <= PRODUCTS_TOGETHER else accumulate


def _question(
    spec: LayerSpec,
    batch: int,
    nonzeros: NDArray[np.integer],
    accumulate: Accumulator,
    *,
    clusters: bool,
    tables: bool,
    device: DeviceModel,
) -> RankingQuestion:
    bands, kind = bands_of(spec, batch, int(nonzeros.sum())), accumulator_of(spec, accumulate, nonzeros)
    return RankingQuestion(spec, *bands, kind, clusters, tables, device)


def _fitting(
    layer: Lowered[LayerSpec], question: RankingQuestion, nonzeros: NDArray[np.integer], ranking: Ranking = ranking_of
) -> Iterator[tuple[Tiling, float]]:
    """Tilings that fit these weights, the one predicted to be fastest first, and the bytes of their code."""
    for tiling in chain(ranking(question), _last_resort(layer, question.accumulate)):
        if layer.spec.data_type == "float16" and _too_long(tiling, nonzeros):
            continue
        divided = layer.tiled(tiling)
        streams = layer_instructions(divided, nonzeros)
        if _streams_fit(divided, nonzeros, streams):
            yield tiling, 16 * float(streams.sum())


def _too_long(tiling: Tiling, nonzeros: NDArray[np.integer]) -> bool:
    """Whether each block of a cluster has more products of an output channel than are added up in float16."""
    kept = tiling.splits_streams and tiling.accumulate == "float32"
    return kept and int(nonzeros.max()) > PRODUCTS_TOGETHER * tiling.cluster


def choose_parts(spec: LayerSpec, tiling: Tiling, nonzeros: NDArray[np.integer]) -> tuple[Part, ...]:
    """Parts of a layer's K groups that ptxas compiles in seconds each: as few as possible, about even."""
    streams = stream_instructions(spec, tiling, nonzeros)
    # Listed: one kernel, whose blocks fill the GPU; by place, the blocks of all K groups are side by side.
    whole = tiling.form != "rolled" or tiling.reads_table or tiling.listed or tiling.order != "group"
    return (Part(0, len(streams)),) if whole else cut(streams, tiling.cluster, tiling.block_groups)


def divisible(spec: LayerSpec, tiling: Tiling, nonzeros: NDArray[np.integer]) -> Tiling:
    """The tiling for ptxas: with its K groups in turn if the layer is too large for one kernel."""
    if tiling.order == "group":
        return tiling
    in_turn = replace(tiling, order="group")
    return in_turn if len(choose_parts(spec, in_turn, nonzeros)) > 1 else tiling


def _check_form(layer: Lowered[LayerSpec], form: Form) -> None:
    geometry, spec = layer.geometry, layer.spec
    ordinary = geometry.groups == 1 and geometry.phase_count == 1 and spec.data_type == "float32"
    alone = not prepares_inputs(spec) and not is_pooled(spec)
    if form == "full" and not (ordinary and isinstance(spec, Conv2d) and alone):
        raise TilingError(
            "the full form is for float32 convolutions of one group without input bounds, gates or a pool: "
            "leave out --template full"
        )


def _density_band(density: float) -> float:
    # Pruning to 0.9 leaves a few weights more or less than a tenth: those belong to the same band.
    return next((band for band in DENSITY_BANDS if density <= band * 1.05), 1.0)


def _last_resort(layer: Lowered[LayerSpec], accumulate: Accumulator) -> Iterator[Tiling]:
    tilings = (replace(tiling, accumulate=accumulate) for tiling in last_resort(layer))
    return (tiling for tiling in tilings if layer.tiled(tiling).launch.shared_bytes <= SHARED_BYTES)


def _streams_fit(layer: AnyTiled, nonzeros: NDArray[np.integer], streams: NDArray[np.float64]) -> bool:
    if layer.tiling.group_outputs == 1 or layer.tiling.reads_table:
        return True  # there is nothing smaller, or no code of weights
    largest = int(stream_nonzeros(layer, nonzeros).max()) * layer.tiling.rows
    multiply_adds, code_bytes = stream_limits(layer)
    return largest <= UNEVEN * multiply_adds and 16 * float(streams.max()) <= UNEVEN * code_bytes
