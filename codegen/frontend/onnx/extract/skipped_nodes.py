"""A node that is not compiled: its reason, and how large it is, as far as the file says."""

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
"""Their weights may be either operand."""
_PLACES = {"QLinearConv": (3,), "QLinearMatMul": (3, 0), "QGemm": (3, 0), "GRU": (1, 2), "LSTM": (1, 2), "RNN": (1, 2)}
"""Of the weights among a node's inputs, where they are not in second place."""

Shape = tuple[int, ...]


def skipped_layer(node: Node, name: str, kind: str, reason: str, graph: Graph) -> SkippedLayer:
    """What is listed for the node."""
    shapes = _weights_shapes(node, graph)
    weights = sum(map(prod, shapes.values())) or None
    multiply_adds = _multiply_adds(node, graph, shapes, weights) if weights else None
    return SkippedLayer(name, node.operator, reason, weights, multiply_adds, kind)


def weights_places(node: Node) -> tuple[int, ...]:
    """Where weights may be among a node's inputs."""
    return _PLACES.get(node.operator, (1, 0) if node.operator in PRODUCTS else (1,))


def _weights_shapes(node: Node, graph: Graph) -> dict[int, Shape]:
    """Shapes of its constant weights by place among the inputs; empty if they are computed, or in a sub-graph."""
    if node.owner:
        return {}
    try:
        places = weights_places(node)
        return {i: graph.constants.read(node.input(i)).shape for i in places if node.input(i) in graph.constants}
    except (CheckpointError, UnsupportedError):
        return {}


def _multiply_adds(node: Node, graph: Graph, shapes: Mapping[int, Shape], weights: int) -> int | None:
    """Of one image, which is the first dimension of what the node reads; of a sequence the second. None: not known."""
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
        if elements is None:  # as in the layers that are compiled
            elements = None if not size or size[-1] is None else LIKELY_ROWS * size[-1]
        return None if elements is None else terms * elements
    is_sequence = not (produces or node.operator == "ConvTranspose")
    positions = [each for each in (size[:1] if is_sequence else size[2:]) if each is not None]
    return weights * prod(positions) if len(positions) == (1 if is_sequence else len(size) - 2) else None
