"""The choice to leave layers dense: to the framework, where that is faster by prediction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import DataType, SkippedLayer
from codegen.ir.tiling import Tiling
from codegen.selection.dense_cost import DensePrecision, dense_microseconds, predict_dense_microseconds
from farm.jobs.kernel_times import kernel_microseconds
from farm.jobs.model import BuildOptions, TilingChoice

MARGIN = 1.15
"""Ratio of predicted times from which a layer is left dense: the framework needs further kernels at its borders."""
GAIN = 1.1
"""Least ratio of dense to compiled time, by prediction, of a network's compiled layers: below it, either may win.

In 64 cases of four networks with tuning records, on H200s, it compiles 42, some with layers left dense: wholly compiled
they took 1.00 to 1.80 times as long dense. Of the 22 others seven would gain, 1.17x at most.
"""
KIND = "left dense"
"""Kind under which layers left dense are listed as skipped."""


@dataclass(frozen=True)
class LayerTimes:
    """Predicted times of a layer on one GPU at one batch size, in microseconds."""

    where: str
    """Precision and GPU, and the batch size among several."""
    compiled: float
    left: float
    """Dense among compiled layers, whose tensors are contiguous."""
    dense: float
    """In a dense network, whose layout is the faster one."""


def times_of(
    layer: Layer, nonzeros: int, tilings: Iterable[tuple[int, Tiling, TilingChoice]], options: BuildOptions
) -> Iterator[LayerTimes]:
    """The times of a layer in each case that it would be compiled for: batch size, tiling and its origin."""
    spec, precision = layer.spec, precision_of(layer.spec.data_type, options)
    for batch, tiling, choice in tilings:
        rows, device = batch * layer.likely_rows, options.device(choice.arch)
        compiled = kernel_microseconds(spec, tiling, rows, nonzeros / spec.weights_count, device, (choice,))
        left = predict_dense_microseconds(spec, rows, precision, device=device)
        dense = dense_microseconds(spec, rows, device)[precision]
        where = f"{precision.upper()}, {device.name}{f', batch {batch}' if len(options.batches) > 1 else ''}"
        yield LayerTimes(where, compiled, left, dense)


def left_dense(layer: Layer, nonzeros: int, times: Sequence[LayerTimes], options: BuildOptions) -> SkippedLayer | None:
    """The layer as one that is skipped if it is better left dense in every case; None if it is compiled."""
    sparsity = 1 - nonzeros / layer.spec.weights_count
    if sparsity < options.min_sparsity:
        return skipped(layer, f"{sparsity:.1%} of its weights are zero, less than --min-sparsity")
    if not chooses(options) or any(each.compiled <= MARGIN * each.left for each in times):
        return None
    worst = max(times, key=lambda each: each.compiled / each.left)
    return skipped(layer, _reason("faster dense", worst.left, worst.compiled, worst.where))


def whole_left_dense(layers: Sequence[tuple[Sequence[LayerTimes], bool]], options: BuildOptions) -> str:
    """Why a network is better left dense as a whole, in every case; empty if it is compiled.

    `layers` are the times of each layer in the same cases, and whether it is left dense anyway.
    """
    if not chooses(options):
        return ""
    reasons, is_left = [], [left for _, left in layers]
    for of_case in zip(*(times for times, _ in layers), strict=True):
        compiled = sum(each.compiled for each, left in zip(of_case, is_left, strict=True) if not left)
        left_over = sum(each.left for each, left in zip(of_case, is_left, strict=True) if left)
        dense = sum(each.dense for each in of_case)
        if GAIN * compiled + left_over <= dense:
            return ""
        ours = compiled + left_over
        reasons.append((ours / dense, _reason("the network is as fast dense", dense, ours, of_case[0].where)))
    return max(reasons)[1]


def chooses(options: BuildOptions) -> bool:
    """Whether predictions decide what is left dense."""
    return options.leave_dense == "auto" and not options.strict


def precision_of(data_type: DataType, options: BuildOptions) -> DensePrecision:
    """The precision that the framework computes a dense layer in."""
    if data_type != "float32":
        return "fp16"
    return "tf32" if options.allow_tf32 else "fp32"


def skipped(layer: Layer, reason: str) -> SkippedLayer:
    """The layer as one that is left dense."""
    spec = layer.spec
    multiply_adds = spec.multiply_adds * layer.likely_rows
    return SkippedLayer(layer.name, layer.operator, reason, spec.weights_count, multiply_adds, KIND)


def _reason(what: str, dense: float, compiled: float, where: str) -> str:
    times = f"{dense:,.1f} us in PyTorch, {compiled:,.1f} us compiled ({where})"
    return f"{what}, by prediction: {times}; --leave-dense never compiles it"
