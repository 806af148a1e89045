"""The choice to leave a layer dense: to the framework, where that is faster by prediction."""

from __future__ import annotations

from collections.abc import Iterable

from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import DataType, SkippedLayer
from codegen.ir.tiling import Tiling
from codegen.kernels import tiled
from codegen.selection.cost_model import predict_microseconds
from codegen.selection.dense_cost import DensePrecision, predict_dense_microseconds
from farm.jobs.model import BuildOptions

MARGIN = 1.25
"""Ratio of predicted times from which a layer is left dense: predictions of both are off by this."""
KIND = "left dense"
"""Kind under which layers left dense are listed as skipped."""


def left_dense(
    layer: Layer, nonzeros: int, tilings: Iterable[tuple[int, Tiling, str]], options: BuildOptions
) -> SkippedLayer | None:
    """The layer as one that is skipped if it is better left dense for every architecture and batch size.

    None if it is compiled. `tilings` are those that it would be compiled with: batch size, tiling and architecture.
    """
    sparsity = 1 - nonzeros / layer.spec.weights_count
    if sparsity < options.min_sparsity:
        return _skipped(layer, f"{sparsity:.1%} of its weights are zero, less than --min-sparsity")
    if options.leave_dense == "never" or options.strict:
        return None
    precision = precision_of(layer.spec.data_type, options)
    slowest = (0.0, "")
    for batch, tiling, arch in tilings:
        rows, device = batch * layer.likely_rows, options.device(arch)
        dense = predict_dense_microseconds(layer.spec, rows, precision, device=device)
        density = nonzeros / layer.spec.weights_count
        compiled = predict_microseconds(tiled(layer.spec, tiling), rows, density, device=device)
        if compiled <= MARGIN * dense:
            return None
        where = f"{precision.upper()}, {device.name}{f', batch {batch}' if len(options.batches) > 1 else ''}"
        times = f"{dense:,.1f} us in PyTorch, {compiled:,.1f} us compiled ({where})"
        slowest = max(slowest, (compiled / dense, times))
    return _skipped(layer, f"faster dense, by prediction: {slowest[1]}; --leave-dense never compiles it")


def precision_of(data_type: DataType, options: BuildOptions) -> DensePrecision:
    """The precision that the framework computes a dense layer in."""
    if data_type != "float32":
        return "fp16"
    return "tf32" if options.allow_tf32 else "fp32"


def _skipped(layer: Layer, reason: str) -> SkippedLayer:
    spec = layer.spec
    multiply_adds = spec.multiply_adds * layer.likely_rows
    return SkippedLayer(layer.name, layer.operator, reason, spec.weights_count, multiply_adds, KIND)
