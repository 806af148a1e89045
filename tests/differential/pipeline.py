"""This project's way from a model file to outputs: read, tiled, compiled by nvcc, rewritten, run in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Layer, Weights
from codegen.ir.dtypes import numpy_dtype, to_float32
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import LayerSpec, Linear, plain
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import products_together
from codegen.ptx.rewrite import rewrite
from codegen.selection.choose import choose_parts, choose_tiling, ranked_tilings
from codegen.verification.compare import is_written, poisoned
from codegen.verification.dot_products import gated_input
from tests.error_bounds import error_bound
from tests.templates import shared_template

BESIDE = (2, 1)
"""Channels of the larger tensor before and after those of a convolution."""


@dataclass(frozen=True, eq=False)
class Output:
    """A tensor that a compiled layer computes, in float64 and in the shape that the model gives it."""

    values: NDArray[np.float64]
    """NaN where the kernel wrote nothing."""
    bound: NDArray[np.float64]
    """Largest allowed distance from the layer as it was read, with its weights as they were folded."""


@dataclass(frozen=True)
class DrawnKernel:
    """One kernel of a layer that is about to be launched."""

    spec: LayerSpec
    tiling: Tiling
    weights: Weights
    part: Part
    launch: Launch
    arguments: Mapping[str, Any]
    """By name; the output as it is before the launch."""


Beside = Callable[[DrawnKernel, str, NDArray[Any]], None]
"""Runs a kernel of PTX for a virtual architecture otherwise, and compares the output with the PTX's."""


def ours(
    path: Path,
    inputs: Mapping[str, NDArray[Any]],
    virtual_arch: str = "compute_80",
    place: float = 0.0,
    beside: Beside | None = None,
) -> dict[str, Output]:
    """The tensors that the layers of a model compute, by their names.

    Layers read inputs of the model; what they add up may be what a layer before them computed.

    `place` is that of the tiling among those that a layer can be given: 0 is the one that is chosen, 1 the one that
    would be chosen last. Inputs of bfloat16 are arrays of any 16-bit type. Raises CheckpointError if no layer of the
    model is compiled.
    """
    shapes = _shapes(path)
    tensors, outputs = dict(inputs), dict[str, Output]()
    for layer in read_checkpoint(path, {}).layers:
        layer = layer if layer.pool is None else layer.with_pool()
        stored, bound = _run(layer, tensors, virtual_arch, place, beside)
        if layer.residual in outputs:
            bound = bound + outputs[layer.residual].bound.reshape(bound.shape)
        values = to_float32(stored, layer.spec.data_type).astype(np.float64)
        shape = shapes[layer.output]
        tensors[layer.output] = stored
        outputs[layer.output] = Output(values.reshape(shape), bound.reshape(shape))
    return outputs


def _run(
    layer: Layer, inputs: Mapping[str, NDArray[Any]], virtual_arch: str, place: float, beside: Beside | None
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The output of the layer's kernels as it is stored, and its error bound."""
    spec, weights = layer.spec, layer.weights
    x = _stored(inputs[layer.input], spec).reshape(-1, *spec.input_shape)
    residual = _stored(inputs[layer.residual], spec).reshape(-1, *spec.output_shape) if layer.residual else None
    gate = _stored(inputs[layer.gate], spec) if layer.gate else None
    tiling = choose_tiling(spec, len(x), weights.nonzeros_per_output)
    if place > 0:
        possible = ranked_tilings(spec, len(x), weights.nonzeros_per_output)
        tiling = possible[round(place * (len(possible) - 1))]
    template = shared_template(spec, tiling, virtual_arch)
    tensor, output, step = _room(spec, len(x))
    for part in choose_parts(spec, tiling, weights.nonzeros_per_output):
        kernel = rewrite(template, weights, part)
        launch = kernel.launch
        arguments: dict[str, Any] = {
            "input": x,
            "output": output,
            "residual": residual,
            "gate": gate,
            **launch.numbers(len(x)),
            **step,
        }
        before = DrawnKernel(spec, tiling, weights, part, launch, {**arguments, "output": output.copy()})
        in_order = [arguments[name] for name in launch.arguments]
        emulate.run(kernel.ptx, launch.grid_at(len(x)), launch.block, launch.shared_bytes, in_order)
        if beside is not None:
            beside(before, virtual_arch, output)
    x = x if gate is None else gated_input(spec, x, gate)
    together = products_together(weights, tiling)
    bound = error_bound(plain(spec), weights, x, residual=residual, products_together=together)
    own = slice(BESIDE[0], BESIDE[0] + spec.output_channels) if step else slice(None)
    assert not is_written(np.delete(tensor, own, axis=1)).any()
    return np.ascontiguousarray(tensor[:, own]), bound


def _room(spec: LayerSpec, images: int) -> tuple[NDArray[Any], NDArray[Any], dict[str, int]]:
    """A tensor in which every element is NaN; the layer's output from its first element on; numbers of the launch.

    Convolutions write among the channels of a larger tensor. An element that no thread writes is never right.
    """
    if isinstance(spec, Linear):
        tensor = poisoned(spec, images)
        return tensor, tensor, {}
    tensor = poisoned(replace(spec, output_channels=spec.output_channels + sum(BESIDE), groups=1), images)
    return tensor, tensor.reshape(-1)[BESIDE[0] * prod(tensor.shape[2:]) :], {"output_step": prod(tensor.shape[1:])}


def _stored(array: NDArray[Any], spec: LayerSpec) -> NDArray[Any]:
    """Contiguous, and bfloat16 as its bits."""
    return np.ascontiguousarray(array).view(numpy_dtype(spec.data_type))


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's tensors, which are all fixed: a layer knows less, as a vector is a row or a column to it."""
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    return {
        value.name: tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)
        for value in (*graph.value_info, *graph.output)
    }
