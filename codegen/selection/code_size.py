"""Predicted machine instructions of a layer's streams with given weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.kernels import AnyTiled, tiled
from codegen.selection.costs.stream import Stream

DIRECT_INSTRUCTIONS = 1_000_000
"""Most instructions of a kernel assembled without ptxas, whose time and memory are linear in them (550 bytes each)."""


def stream_instructions(spec: LayerSpec, tiling: Tiling, nonzeros: NDArray[np.integer]) -> NDArray[np.float64]:
    """[streams]: predicted machine instructions, of 16 bytes, for these non-zeros per output channel [K]."""
    return layer_instructions(tiled(spec, tiling), nonzeros)


def average_instructions(spec: LayerSpec, tiling: Tiling, nonzeros: int) -> float:
    """Predicted machine instructions of a K group if the layer's non-zeros were spread evenly."""
    return Stream.of(tiled(spec, tiling).workload, nonzeros / spec.weights_count).code


def stream_nonzeros(layer: AnyTiled, nonzeros: NDArray[np.integer]) -> NDArray[np.int64]:
    """[streams]: non-zeros of each; those of a K group are spread evenly over the blocks of its cluster."""
    by_stream = layer.streams.by_stream(nonzeros)
    sums: NDArray[np.int64] = np.asarray(by_stream, dtype=np.int64).sum(axis=1)
    return np.repeat(sums // layer.streams.shares, layer.streams.shares)


def layer_instructions(layer: AnyTiled, nonzeros: NDArray[np.integer]) -> NDArray[np.float64]:
    """[streams]: predicted machine instructions with these weights, which may be pruned unevenly."""
    average = Stream.of(layer.workload, float(nonzeros.sum()) / layer.spec.weights_count)
    if layer.tiling.reads_table:
        return np.full(layer.streams.count, average.code)
    multiply_adds = stream_nonzeros(layer, nonzeros) * layer.tiling.rows
    return np.asarray(average.code - average.multiply_adds + multiply_adds, dtype=np.float64)


def fits_one_cubin(spec: LayerSpec, tiling: Tiling, nonzeros: NDArray[np.integer]) -> bool:
    """Whether a layer may be one cubin if it is assembled without ptxas."""
    return float(stream_instructions(spec, tiling, nonzeros).sum()) <= DIRECT_INSTRUCTIONS
