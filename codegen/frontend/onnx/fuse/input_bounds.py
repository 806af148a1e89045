"""BatchNormalization and Relu before a layer, computed by the layer's kernel as it reads its input.

max(s x + t, 0) is s (max(x, b) - b) with the bound b = -t / s, and with min in the place of max where s is negative: s
goes into the weights, b times them into the biases, and an input element is compared with one number of its channel.
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


def with_prologue(layer: Layer, graph: Graph, taken: Set[int]) -> Layer:
    """The layer with the normalisation before it, if nothing else reads what that gives; else as it is.

    Only of 1x1 kernels without padding: padding is zero after a normalisation, not before it. Nodes at positions in
    `taken` are left.
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
    """The node of this operator that computes a tensor which one node reads."""
    node = graph.producer(tensor)
    if node is None or node.operator != operator or node.domain not in ONNX_DOMAINS or node.position in taken:
        return None
    return node if graph.only_reader(tensor) else None


def _bounded(weights: Weights, affine: Affine) -> Weights | None:
    """The weights after a normalisation and a Relu; None if they are not finite."""
    scale, offset = affine.scale, affine.offset
    constant = scale == 0
    with np.errstate(all="ignore"):
        bound = np.where(constant, 0.0, -offset / scale).astype(np.float32)
        kernel = rounded(weights.kernel * scale[:, None, None], "float32")
        # With the weights and bounds that the kernel has: below its bound a channel adds nothing but rounding.
        added = np.where(constant, np.maximum(offset, 0.0), 0.0) * weights.kernel[:, :, 0, 0]
        added -= kernel[:, :, 0, 0].astype(np.float64) * bound
        bias = rounded(weights.bias + added.sum(axis=1), "float32")
    if not (np.isfinite(kernel).all() and np.isfinite(bias).all() and np.isfinite(bound).all()):
        return None
    low, high = np.where(scale > 0, bound, -np.inf), np.where(scale < 0, bound, np.inf)
    return Weights(kernel, bias, np.stack([low, high], axis=1).astype(np.float32))
