"""Inlining of a model's local functions, within limits of the resulting graph's size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph.library_errors import model_errors
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, text

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

LARGEST_NODES = 250_000
"""Most nodes of a graph and its sub-graphs, with every function inlined."""
LARGEST_BYTES = 2**28
"""Most bytes of the nodes that come from functions."""
DEEPEST_CALLS = 50
"""Most levels of functions that call functions."""

FunctionId: TypeAlias = tuple[str, str, str]
"""Domain, name, overload."""


@dataclass(frozen=True)
class Extent:
    """Size of a node or function after inlining."""

    nodes: int = 0
    bytes: int = 0
    """Bytes of the nodes that came from functions."""
    depth: int = 0
    """Levels of nested function calls."""


def inline_functions(model: ModelProto) -> ModelProto:
    """The model with its local functions inlined into the main graph and its sub-graphs.

    Raises CheckpointError for recursive functions, and for a graph that is too large before or after inlining.
    """
    extent = _extent(model.graph.node, _Measured(model.functions), ())
    if extent.nodes > LARGEST_NODES or extent.bytes > LARGEST_BYTES:
        expanded = " once its functions are in place" if extent.depth else ""
        raise CheckpointError(
            f"it has {extent.nodes:,} nodes of {extent.bytes:,} bytes{expanded}, more than the {LARGEST_NODES:,} nodes "
            f"and {LARGEST_BYTES:,} bytes allowed: export a smaller part of the model"
        )
    return _inlined(model) if model.functions else model


class _Measured:
    """Extents of a model's functions, each computed once."""

    def __init__(self, functions: Iterable[FunctionProto]) -> None:
        self._functions: Mapping[FunctionId, FunctionProto] = {_identity(each): each for each in functions}
        self._extents: dict[FunctionId, Extent] = {}

    def call(self, node: NodeProto, callers: tuple[FunctionId, ...]) -> Extent | None:
        """The extent of an inlined call; None for a node that calls no local function. Raises CheckpointError."""
        called = (_domain(node.domain), node.op_type, getattr(node, "overload", ""))
        if called not in self._functions:
            return None
        name = text(node.op_type)
        if called in callers:
            raise CheckpointError(f"its function '{name}' calls itself, which ONNX forbids: export the model again")
        if len(callers) >= DEEPEST_CALLS:
            raise _too_deep(name)
        if called not in self._extents:
            self._extents[called] = _extent(self._functions[called].node, self, (*callers, called))
        extent = self._extents[called]
        if len(callers) + extent.depth >= DEEPEST_CALLS:
            raise _too_deep(name)
        return Extent(extent.nodes, extent.bytes + self._functions[called].ByteSize(), extent.depth + 1)


def _extent(nodes: Iterable[NodeProto], measured: _Measured, callers: tuple[FunctionId, ...]) -> Extent:
    parts = [each for node in nodes for each in _extents(node, measured, callers)]
    return Extent(
        sum(part.nodes for part in parts),
        sum(part.bytes for part in parts),
        max((part.depth for part in parts), default=0),
    )


def _extents(node: NodeProto, measured: _Measured, callers: tuple[FunctionId, ...]) -> Iterator[Extent]:
    """Extents of the node itself and of its sub-graphs."""
    yield measured.call(node, callers) or Extent(nodes=1)
    for graph in sub_graphs(node):
        yield _extent(graph.node, measured, callers)


def sub_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The direct sub-graphs of a node such as If, Loop or Scan."""
    for attribute in node.attribute:
        yield from [attribute.g] * attribute.HasField("g") + list(attribute.graphs)


def reads(node: NodeProto) -> list[str]:
    """Names that a node and its sub-graphs read, including names defined inside the sub-graphs."""
    names = list(node.input)
    for graph in sub_graphs(node):
        for inner in graph.node:
            names += reads(inner)
        names += [output.name for output in graph.output]
    return names


def _inlined(model: ModelProto) -> ModelProto:
    """The model inlined by onnx's inliner. The inliner copies the model, so it gets empty initializers."""
    from onnx import TensorProto, inliner

    graph = model.graph
    dense, sparse = list(graph.initializer), list(graph.sparse_initializer)
    del graph.initializer[:], graph.sparse_initializer[:]
    for name in (*(each.name for each in dense), *(each.values.name for each in sparse)):
        graph.initializer.add(name=text(name), data_type=TensorProto.FLOAT)
    try:
        inlined: ModelProto = inliner.inline_local_functions(model)
    except model_errors() as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"its functions cannot be inlined ({reason}): export it without functions") from error
    del inlined.graph.initializer[:]
    inlined.graph.initializer.extend(dense)
    inlined.graph.sparse_initializer.extend(sparse)
    return inlined


def _identity(function: FunctionProto) -> FunctionId:
    return _domain(function.domain), function.name, getattr(function, "overload", "")


def _domain(name: str) -> str:
    return "" if name in ONNX_DOMAINS else name


def _too_deep(name: str) -> CheckpointError:
    return CheckpointError(
        f"its functions call each other more than {DEEPEST_CALLS} deep, down to '{name}': export it without functions"
    )
