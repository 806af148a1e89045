"""Patterns of nodes that form one activation, as exporters write them: v * Sigmoid(v), GELU with Erf or Tanh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.fuse.epilogue_steps import activation
from codegen.frontend.onnx.fuse.expression import (
    Expression,
    UnknownExpressionError,
    V,
    activation_of,
    apply,
    clipped,
    expression_of,
    number,
)
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, Node
from codegen.ir.dtypes import PRECISIONS
from codegen.ir.layer_spec import Activation, Clip, DataType, Gelu, HardSigmoid, HardSwish, Mish, Swish

MOST_NODES = 16
"""Most nodes of a pattern; GELU with Tanh has nine."""
CONSTANTS_TOLERANCE = 1e-6
"""Least relative tolerance of a pattern's constants, which exporters write with seven digits."""


@dataclass(frozen=True)
class ActivationPattern:
    """Nodes that compute one activation, in graph order; other nodes read the last one's output only."""

    nodes: tuple[Node, ...]
    step: Activation


def match_activation(graph: Graph, tensor: str, data_type: DataType) -> ActivationPattern | None:
    """The smallest pattern of nodes after a tensor that forms an activation; None without such nodes.

    Constants in the nodes match within the data type's rounding.
    """
    tolerance = max(CONSTANTS_TOLERANCE, 4 * PRECISIONS[data_type].unit_roundoff)
    known = {tensor: V}
    nodes: list[Node] = []
    while len(nodes) < MOST_NODES and (node := _next(graph, known, nodes)):
        try:
            known[node.outputs[0]] = _expression(node, graph, known)
            nodes.append(node)
            if _is_closed(graph, known, nodes) and (step := activation_of(known[node.outputs[0]], tolerance)):
                return ActivationPattern(tuple(nodes), step)
        except (UnknownExpressionError, UnsupportedError, OverflowError):
            return None
    return None


def _next(graph: Graph, known: Mapping[str, Expression], nodes: list[Node]) -> Node | None:
    """The first further node whose inputs are all known expressions or constants."""
    taken = {node.position for node in nodes}
    ready = [
        node
        for tensor in known
        for node in graph.readers(tensor) or ()
        if node.position not in taken
        and all(not name or name in known or name in graph.constants for name in node.inputs)
    ]
    return min(ready, key=lambda node: node.position, default=None)


def _is_closed(graph: Graph, known: Mapping[str, Expression], nodes: list[Node]) -> bool:
    """Whether only these nodes read the known tensors, apart from the last node's output."""
    inside = {node.position for node in nodes}
    before = [graph.readers(tensor) for tensor in known if tensor != nodes[-1].outputs[0]]
    return all(readers is not None and inside.issuperset(each.position for each in readers) for readers in before)


def _expression(node: Node, graph: Graph, known: Mapping[str, Expression]) -> Expression:
    """A node's output as an expression in v. Raises UnknownExpressionError, or UnsupportedError for a constant."""
    unusual = node.domain not in ONNX_DOMAINS or not any(node.outputs[:1])
    if unusual or any(graph.is_read(name) for name in node.outputs[1:]):
        raise UnknownExpressionError
    if node.operator == "Clip":
        return _clip(node, graph, known)
    rank = max(len(graph.size(name) or ()) for name in node.inputs if name in known)
    operands = [known.get(name) or _constant(name, graph, rank) for name in node.inputs]
    match operands:
        case [v]:
            return _unary(node, v)
        case [a, b] if node.operator in _BINARY:
            return _BINARY[node.operator](a, b)
    raise UnknownExpressionError


def _constant(name: str, graph: Graph, most_dimensions: int) -> Expression:
    """A constant of one element, a float or an integer exponent. Raises UnknownExpressionError for others."""
    values = graph.constants.read(name) if name else np.empty(0)
    if values.size != 1 or values.ndim > max(most_dimensions, 1):
        raise UnknownExpressionError
    value = float(values.item()) if values.dtype.kind in "iu" else graph.numbers(name).item()
    if not np.isfinite(value):
        raise UnknownExpressionError
    return number(value)


def _clip(node: Node, graph: Graph, known: Mapping[str, Expression]) -> Expression:
    match activation(node, graph, node.input(0)):
        case (Clip(low, high),) if node.input(0) in known and low is not None and high is not None:
            return clipped(known[node.input(0)], low, high)
    raise UnknownExpressionError


def _quotient(a: Expression, b: Expression) -> Expression:
    if not b.constant:
        raise UnknownExpressionError
    return a.times(1 / b.constant)


def _unary(node: Node, v: Expression) -> Expression:
    match node.operator:
        case "Identity":
            return v
        case "Neg":
            return v.times(-1)
        case "Erf" | "Sigmoid" | "Softplus" | "Tanh":
            return apply(node.operator, v)
        case "HardSigmoid":
            return expression_of(HardSigmoid(node.floats.get("alpha", 0.2), node.floats.get("beta", 0.5)), v)
        case "HardSwish":
            return expression_of(HardSwish(1 / 6, 0.5), v)
        case "Swish":
            return expression_of(Swish(node.floats.get("alpha", 1.0)), v)
        case "Gelu":
            return expression_of(Gelu("tanh" if node.strings.get("approximate") == "tanh" else "none"), v)
        case "Mish":
            return expression_of(Mish(), v)
    raise UnknownExpressionError


_BINARY: dict[str, Callable[[Expression, Expression], Expression]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a + b.times(-1),
    "Mul": lambda a, b: a * b,
    "Div": _quotient,
    "Pow": lambda a, b: a.to_the(b.constant),
}
