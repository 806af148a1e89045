"""Epilogue steps: activations and residuals after a product, computed by the product's kernel."""

from __future__ import annotations

from math import inf, isfinite

import numpy as np

from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import Node
from codegen.ir.layer_spec import Clip, LeakyRelu, Step

DEFAULT_SLOPE = float(np.float32(0.01))
"""Slope of a LeakyRelu that gives none, as float32."""


def activation(node: Node, graph: Graph, tensor: str) -> tuple[Step, ...] | None:
    """The epilogue steps of a node that is an activation of `tensor`; None for other nodes.

    A Clip without bounds has no steps. Raises UnsupportedError if one of its constants cannot be computed.
    """
    if node.input(0) != tensor:
        return None
    if node.operator == "Relu":
        return (Clip(low=0.0),)
    if node.operator == "Clip":
        return _clip(node, graph)
    if node.operator == "LeakyRelu":
        slope: float | None = node.floats.get("alpha", DEFAULT_SLOPE)
    elif node.operator == "PRelu":
        slope = scalar(node.input(1), graph, len(graph.size(tensor) or ()))
    else:
        return None
    return (LeakyRelu(slope),) if slope is not None and isfinite(slope) else None


def residual(node: Node, graph: Graph, tensor: str, reshaped: str = "") -> str:
    """The tensor that an Add adds to `tensor`, if it is not constant and its shape is known to be equal; else empty.

    `reshaped` is the tensor that `tensor` was reshaped from, if any.
    """
    if node.operator != "Add" or len(node.inputs) != 2:
        return ""
    other = node.inputs[1] if node.inputs[0] == tensor else node.inputs[0]
    fits = other not in graph.constants and graph.same_shape(tensor, other, reshaped)
    return other if fits else ""


def _clip(node: Node, graph: Graph) -> tuple[Step, ...] | None:
    """The step of a Clip, whose bounds are attributes until opset 10 and inputs from opset 11."""
    bounds: list[float | None] = []
    for place, name, no_bound in ((1, "min", -inf), (2, "max", inf)):
        bound = scalar(node.input(place), graph) if node.input(place) else node.floats.get(name, no_bound)
        if bound is None or not (isfinite(bound) or bound == no_bound):
            return None
        bounds.append(None if bound == no_bound else bound)
    low, high = bounds
    if low is None and high is None:
        return ()
    # ONNX does not define a Clip with crossed bounds.
    return None if low is not None and high is not None and low > high else (Clip(low, high),)


def scalar(name: str, graph: Graph, most_dimensions: int = 1) -> float | None:
    """The value of a constant of one element; None for other tensors. Raises UnsupportedError if not computable."""
    if name not in graph.constants:
        return None
    constant = graph.numbers(name)
    return constant.item() if constant.size == 1 and constant.ndim <= most_dimensions else None
