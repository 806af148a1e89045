"""Description of skipped nodes: the reason, weights and multiply-adds as far as the file gives them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from codegen.errors import CheckpointError
from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import Node
from codegen.ir.layer_spec import LIKELY_ROWS, SkippedLayer

_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "DeformConv", "FusedConv", "QLinearConv"})
PRODUCTS = frozenset(
    {"Einsum", "FusedGemm", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger", "QGemm", "QLinearMatMul"}
)
"""Operators whose weights may be either operand."""
_WEIGHT_INPUTS = {
    "QLinearConv": (3,),
    "QLinearMatMul": (3, 0),
    "QGemm": (3, 0),
    "GRU": (1, 2),
    "LSTM": (1, 2),
    "RNN": (1, 2),
}
"""Indices of the weights among a node's inputs; 1 for operators not listed."""

Shape = tuple[int, ...]


def skipped_layer(node: Node, name: str, kind: str, reason: str, graph: Graph) -> SkippedLayer:
    """The skipped layer that reports list for a node."""
    shapes = _weights_shapes(node, graph)
    weights = sum(map(prod, shapes.values())) or None
    multiply_adds = _multiply_adds(node, graph, shapes, weights) if weights else None
    return SkippedLayer(name, node.operator, reason, weights, multiply_adds, kind)


def weight_inputs(node: Node) -> tuple[int, ...]:
    """Indices of a node's inputs that may be weights."""
    return _WEIGHT_INPUTS.get(node.operator, (1, 0) if node.operator in PRODUCTS else (1,))


def _weights_shapes(node: Node, graph: Graph) -> dict[int, Shape]:
    """Shapes of the constant weights by index of the input; empty for computed weights and nodes of sub-graphs."""
    if node.owner:
        return {}
    try:
        places = weight_inputs(node)
        return {i: graph.constants.read(node.input(i)).shape for i in places if node.input(i) in graph.constants}
    except (CheckpointError, UnsupportedError):
        return {}


def _multiply_adds(node: Node, graph: Graph, shapes: Mapping[int, Shape], weights: int) -> int | None:
    """Multiply-adds per image; None if unknown. Images are axis 0 of the tensor, or axis 1 for recurrent operators."""
    if node.operator == "Einsum":
        return None
    produces = node.operator in _CONVOLUTIONS | PRODUCTS
    size = graph.size(next(filter(None, node.outputs)) if produces else node.input(0))
    if size is None:
        return None
    if node.operator in PRODUCTS:
        [(place, shape), *_] = shapes.items()
        transposed = bool(node.integer("transB" if place else "transA", 0))
        terms = shape[-1] if len(shape) == 1 or transposed != (place == 0) else shape[-2]
        elements = graph.rows(node.outputs[0], slice(None))
        if elements is None:  # assume the same number of rows as for compiled layers
            elements = None if not size or size[-1] is None else LIKELY_ROWS * size[-1]
        return None if elements is None else terms * elements
    is_sequence = not (produces or node.operator == "ConvTranspose")
    positions = [each for each in (size[:1] if is_sequence else size[2:]) if each is not None]
    return weights * prod(positions) if len(positions) == (1 if is_sequence else len(size) - 2) else None
