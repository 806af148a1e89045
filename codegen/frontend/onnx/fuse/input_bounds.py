"""Input bounds: BatchNormalization and Relu before a layer, computed by the layer's kernel as it loads its input.

max(s x + t, 0) equals s (max(x, b) - b) with the bound b = -t / s, or with min instead of max where s is negative.
The factor s is folded into the weights and b times them into the biases; the kernel compares each input element with
its channel's bound.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import numpy as np

from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.extract.weights import rounded
from codegen.frontend.onnx.fuse.folding import Affine
from codegen.frontend.onnx.fuse.fusion import affine_of
from codegen.frontend.onnx.fuse.view_nodes import Axes
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, Node
from codegen.ir.checkpoint import Layer, Weights
from codegen.ir.layer_spec import Conv2d, prepares_inputs


def with_input_bounds(layer: Layer, graph: Graph, taken: Set[int]) -> Layer:
    """The layer fused with the BatchNormalization and Relu before it, if it is their only reader; else unchanged.

    The layer must be an unpadded 1x1 convolution: padding is zero after the normalisation, not before it. Nodes at
    positions in `taken` are not fused.
    """
    spec = layer.spec
    if not isinstance(spec, Conv2d) or spec.data_type != "float32" or spec.groups > 1 or any(spec.padding):
        return layer
    if prepares_inputs(spec) or (spec.kernel_height, spec.kernel_width, *spec.stride) != (1, 1, 1, 1):
        return layer
    relu = single_use_producer(layer.input, "Relu", graph, taken)
    norm = single_use_producer(relu.input(0), "BatchNormalization", graph, taken) if relu else None
    if relu is None or norm is None:
        return layer
    try:
        axes = Axes(len(graph.size(norm.input(0)) or ()), 1)
        affine = affine_of(norm, norm.input(0), axes, spec.channels, graph)
    except UnsupportedError:  # one of its constants cannot be computed
        return layer
    weights = None if affine is None else _bounded(layer.weights, affine)
    if weights is None:
        return layer
    folded = (str(norm), str(relu), *layer.folded)
    return replace(layer, spec=replace(spec, bounded=True), weights=weights, input=norm.input(0), folded=folded)


def single_use_producer(tensor: str, operator: str, graph: Graph, taken: Set[int]) -> Node | None:
    """The node that computes a tensor, if it has this operator, is not in `taken` and one node reads it; else None."""
    node = graph.producer(tensor)
    if node is None or node.operator != operator or node.domain not in ONNX_DOMAINS or node.position in taken:
        return None
    return node if graph.only_reader(tensor) else None


def _bounded(weights: Weights, affine: Affine) -> Weights | None:
    """The weights with a normalisation and Relu folded in as bounds; None if any value is not finite."""
    scale, offset = affine.scale, affine.offset
    constant = scale == 0
    with np.errstate(all="ignore"):
        bound = np.where(constant, 0.0, -offset / scale).astype(np.float32)
        kernel = rounded(weights.kernel * scale[:, None, None], "float32")
        # Computed from the rounded weights and bounds, so that a channel below its bound contributes only rounding.
        added = np.where(constant, np.maximum(offset, 0.0), 0.0) * weights.kernel[:, :, 0, 0]
        added -= kernel[:, :, 0, 0].astype(np.float64) * bound
        bias = rounded(weights.bias + added.sum(axis=1), "float32")
    if not (np.isfinite(kernel).all() and np.isfinite(bias).all() and np.isfinite(bound).all()):
        return None
    low, high = np.where(scale > 0, bound, -np.inf), np.where(scale < 0, bound, np.inf)
    return Weights(kernel, bias, np.stack([low, high], axis=1).astype(np.float32))
