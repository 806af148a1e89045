"""Quantization: the pairs of QuantizeLinear and DequantizeLinear (QDQ) that a layer computes as one epilogue step."""

from __future__ import annotations

from math import inf, isfinite

import numpy as np

from codegen.frontend.onnx.fuse.epilogue_steps import scalar
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, Node
from codegen.ir.layer_spec import Quantize

INTEGERS = ("int8", "uint8", "int16", "uint16")
"""Quantized types that a layer computes."""


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
