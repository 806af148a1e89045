"""Chooses the tiling of a layer: every candidate that fits, the one predicted to be fastest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from codegen.errors import TilingError
from codegen.operators import launch_of
from codegen.operators.conv2d import groups
from codegen.prediction import predict_microseconds, registers_of, stream_of
from codegen.spec import LayerSpec
from codegen.tiling import Form, Tiling

STREAM_MULTIPLY_ADDS = 8_000
"""Of one K group: ptxas grows faster than linearly beyond (measurements.md)."""
STREAM_BYTES = 100_000
"""Machine code that one block runs: what the multiprocessor's instruction cache holds."""
LONG_STREAM_BYTES = 250_000
"""Of layers with so many channels that loading the input alone nearly fills the cache."""
KERNEL_INSTRUCTIONS = 60_000
"""Of all K groups together: ptxas takes about 10 s for so many in one kernel."""
CODE_BYTES = 5_000_000
"""Machine code of one kernel: ptxas takes minutes for so much."""
SHARED_BYTES = 48 * 1024
"""Every architecture gives a block this much without asking."""
OFFSET_BYTES = 2**31
"""What an address in PTX may add to a register."""
SUMS = 128
BODY_SLOTS = 7_000
"""Multiply-adds of one turn of the loop."""
BODY_RESULTS = 1_600
"""Results of the statements of that turn: with the slots, what nvcc's time grows with (about 3 s here)."""
BATCH_BANDS = (1, 4, 16, 64, 256)
DENSITY_BANDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)


def choose_tiling(spec: LayerSpec, batch: int, nonzeros: NDArray[np.integer], *, form: Form = "rolled") -> Tiling:
    """The tiling of a layer with these non-zeros per kernel [K], for launches of about this batch; deterministic.

    Batch and density go in by bands, so that checkpoints of one pruning sweep share their templates. Raises
    TilingError if nothing fits: the layer's code is too large, or a kernel larger than shared memory.
    """
    density = float(nonzeros.sum()) / spec.weights_count
    bands = _batch_band(batch), _density_band(density)
    code_bytes = 0.0
    for tilings, stream_bytes in (
        (_ranking(spec, *bands, STREAM_BYTES), STREAM_BYTES),
        (_ranking(spec, *bands, LONG_STREAM_BYTES), LONG_STREAM_BYTES),
        (_last_resort(spec), math.inf),
    ):
        for tiling in tilings:
            if _stream_fits(spec, tiling, nonzeros, stream_bytes):
                code_bytes = stream_of(spec, tiling, density).code_bytes * groups(spec, tiling)
                if code_bytes <= CODE_BYTES:
                    return replace(tiling, form=form)
                break
    if not code_bytes:
        raise TilingError(
            f"its kernel is {spec.kernel_height}x{spec.kernel_width}: the input of even one output row does not fit "
            f"the {SHARED_BYTES // 1024} KiB of shared memory"
        )
    raise TilingError(
        f"its code would be {code_bytes / 1e6:.0f} MB and one kernel has at most {CODE_BYTES / 1e6:.0f}: "
        "prune the layer further"
    )


def _batch_band(batch: int) -> int:
    return min(BATCH_BANDS, key=lambda band: abs(math.log(band / batch)))


def _density_band(density: float) -> float:
    # Pruning to 0.9 leaves a few weights more or less than a tenth: those belong to the same band.
    return next((band for band in DENSITY_BANDS if density <= band * 1.05), 1.0)


@lru_cache(maxsize=1024)
def _ranking(spec: LayerSpec, batch: int, density: float, stream_bytes: int) -> tuple[Tiling, ...]:
    fitting = [tiling for tiling in candidates(spec) if _fits(spec, tiling, density, stream_bytes)]
    sizes = [stream_of(spec, tiling, density).code * groups(spec, tiling) for tiling in fitting]
    # A layer that is larger whatever its tiling is given the smaller ones.
    limit = max(KERNEL_INSTRUCTIONS, 1.2 * min(sizes, default=0))
    fitting = [tiling for tiling, size in zip(fitting, sizes, strict=True) if size <= limit]
    return tuple(sorted(fitting, key=lambda tiling: predict_microseconds(spec, tiling, batch, density)))


def candidates(spec: LayerSpec) -> Iterator[Tiling]:
    """Tilings worth a look, in a fixed order, whether they fit or not."""
    height, width = spec.output_height, spec.output_width
    widths = {min(width, 64), min(-(-width // 2), 64), min(width, 32), min(width, 16), min(width, 8)}
    heights = {1, 2, 4, 7, 8, 14, 16, min(height, 32)}
    shares = (1, 2, 4, 8, 16, 32, 64, spec.kernels)
    kernels = {-(-spec.kernels // share) for share in shares}
    channels = {min(spec.channels, chunk) for chunk in (1, 2, 4, 8, 16)}
    for tile_width in sorted(widths):
        for tile_height in sorted(heights):
            if not 32 <= tile_width * tile_height <= 512 and tile_height < height:
                continue
            for rows in (1, 2, 4):
                if tile_height * rows >= height + max(tile_height, rows):
                    continue
                for group_kernels in sorted(kernels):
                    for chunk_channels in sorted(channels):
                        yield Tiling(tile_width, tile_height, rows, group_kernels, chunk_channels, stages=2)


def _last_resort(spec: LayerSpec) -> Iterator[Tiling]:
    """One output channel at a time, however long its stream is: for what the limits leave no tiling."""
    width = min(spec.output_width, 32)
    for tile_width, tile_height in ((width, min(spec.output_height, max(1, 64 // width))), (min(width, 8), 1)):
        tiling = Tiling(tile_width, tile_height, 1, 1, 1, stages=2)
        if launch_of(spec, tiling).shared_bytes <= SHARED_BYTES:
            yield tiling


def _fits(spec: LayerSpec, tiling: Tiling, density: float, stream_bytes: int) -> bool:
    """Threads, registers, shared memory, and the size of the loop body."""
    sums = tiling.group_kernels * tiling.rows
    slots = sums * spec.kernel_height * spec.kernel_width * tiling.chunk_channels
    results = sums * ((tiling.rows - 1) * spec.stride[0] + spec.kernel_height) * tiling.chunk_channels
    return (
        tiling.threads <= 1024
        and sums <= SUMS
        and registers_of(spec, tiling) <= 200
        and slots <= BODY_SLOTS
        and results <= BODY_RESULTS
        and launch_of(spec, tiling).shared_bytes <= SHARED_BYTES
        and 4 * sums * spec.output_height * spec.output_width < OFFSET_BYTES
        and 4 * tiling.chunk_channels * spec.height * spec.width < OFFSET_BYTES
        and stream_of(spec, tiling, density).code_bytes <= stream_bytes
    )


def _stream_fits(spec: LayerSpec, tiling: Tiling, nonzeros: NDArray[np.integer], stream_bytes: float) -> bool:
    """The largest K group of these very weights, pruned unevenly as they may be."""
    padded = np.zeros(groups(spec, tiling) * tiling.group_kernels, dtype=np.int64)
    padded[: spec.kernels] = nonzeros
    largest = int(padded.reshape(-1, tiling.group_kernels).sum(axis=1).max()) * tiling.rows
    if stream_bytes == math.inf:
        return True
    average = stream_of(spec, tiling, float(nonzeros.sum()) / spec.weights_count)
    code_bytes = average.code_bytes + 16 * (largest - average.multiply_adds)
    return largest <= STREAM_MULTIPLY_ADDS and code_bytes <= stream_bytes
