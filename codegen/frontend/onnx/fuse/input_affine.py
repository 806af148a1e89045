"""Factors and summands of a layer's input channels, folded into its weights: a normalisation before the layer."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import numpy as np

from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.extract.weights import rounded
from codegen.frontend.onnx.fuse.folding import Affine
from codegen.frontend.onnx.fuse.fusion import affine_of
from codegen.frontend.onnx.fuse.input_bounds import single_use_producer
from codegen.frontend.onnx.fuse.view_nodes import Axes
from codegen.frontend.onnx.graph.graph import Graph
from codegen.ir.checkpoint import Layer, Weights
from codegen.ir.layer_spec import Conv2d, DataType, Linear, prepares_inputs

AFFINE = ("BatchNormalization", "Add", "Sub", "Mul", "Div")


def with_input_affine(layer: Layer, graph: Graph, taken: Set[int]) -> Layer:
    """The layer fused with the normalisations before it of which it is the only reader.

    Nodes at positions in `taken` are not fused. A summand goes only into float32 layers, since sums of inputs far from
    zero are less exact, and not into padded or transposed convolutions: padding is zero after it.
    """
    while (fused := _with_one(layer, graph, taken)) is not None:
        layer = fused
    return layer


def _with_one(layer: Layer, graph: Graph, taken: Set[int]) -> Layer | None:
    spec, size = layer.spec, graph.size(layer.input)
    node = next(filter(None, (single_use_producer(layer.input, each, graph, taken) for each in AFFINE)), None)
    if node is None or size is None or prepares_inputs(spec):
        return None
    x = next((name for name in node.inputs if name not in graph.constants), "")
    channels, axis = (spec.inputs, len(size) - 1) if isinstance(spec, Linear) else (spec.channels, 1)
    if size[axis] != channels or graph.size(x) != size:
        return None
    try:
        affine = affine_of(node, x, Axes(len(size), axis), channels, graph)
    except UnsupportedError:  # one of its constants cannot be computed
        return None
    if affine is None or (affine.offset.any() and not _takes_summands(layer)):
        return None
    weights = _folded(layer.weights, affine, 1 if isinstance(spec, Linear) else spec.groups, spec.data_type)
    return None if weights is None else replace(layer, weights=weights, input=x, folded=(str(node), *layer.folded))


def _takes_summands(layer: Layer) -> bool:
    spec = layer.spec
    unpadded = isinstance(spec, Linear) or (isinstance(spec, Conv2d) and not any(spec.padding))
    return unpadded and spec.data_type == "float32"


def _folded(weights: Weights, affine: Affine, groups: int, data_type: DataType) -> Weights | None:
    """The weights for the input before the map; None if any is not finite. Zeros stay zero."""
    kernel = weights.kernel
    group = np.arange(len(kernel)) // (len(kernel) // groups)
    with np.errstate(all="ignore"):
        scale, offset = (
            each.reshape(groups, -1)[group].reshape(*kernel.shape[:2], *[1] * (kernel.ndim - 2))
            for each in (affine.scale, affine.offset)
        )
        bias = weights.bias + (kernel * offset).reshape(len(kernel), -1).sum(axis=1)
        made = Weights(rounded(kernel * scale, data_type), rounded(bias, data_type))
    return made if np.isfinite(made.kernel).all() and np.isfinite(made.bias).all() else None
