"""Epilogue steps: activations and residuals after a product, computed by the product's kernel."""

from __future__ import annotations

from math import inf, isfinite

import numpy as np

from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, Node
from codegen.ir.layer_spec import Clip, LeakyRelu, Quantize, Step

DEFAULT_SLOPE = float(np.float32(0.01))
"""Slope of a LeakyRelu that gives none, as float32."""
INTEGERS = ("int8", "uint8", "int16", "uint16")
"""Quantized types that a layer computes."""


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


def quantization(node: Node, graph: Graph, tensor: str) -> tuple[Node, Quantize] | None:
    """The DequantizeLinear that alone reads a QuantizeLinear of `tensor`, and the step that both compute.

    None for other nodes and for other parameters than one constant scale and zero point, equal in both nodes. Raises
    UnsupportedError if a constant cannot be computed.
    """
    if node.operator != "QuantizeLinear" or node.input(0) != tensor:
        return None
    reader = graph.only_reader(node.outputs[0])
    integer = graph.element_types.get(node.outputs[0])
    if reader is None or reader.operator != "DequantizeLinear" or reader.domain not in ONNX_DOMAINS:
        return None
    scale, zero = _quantized_by(node, graph)
    if scale is None or zero is None or integer not in INTEGERS or (scale, zero) != _quantized_by(reader, graph):
        return None
    with np.errstate(all="ignore"):
        if not 0 < np.float32(scale) < inf or not isfinite(1 / np.float32(scale)):
            return None
    bounds = np.iinfo(integer)
    return reader, Quantize(scale, int(bounds.min) - zero, int(bounds.max) - zero)


def _quantized_by(node: Node, graph: Graph) -> tuple[float | None, int | None]:
    """Scale and zero point of a node, None where they are not one constant."""
    zero: int | None = 0
    if node.input(2):
        values = graph.constants.read(node.input(2)) if node.input(2) in graph.constants else np.empty(0)
        zero = int(values.item()) if values.size == 1 else None
    return scalar(node.input(1), graph), zero


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
