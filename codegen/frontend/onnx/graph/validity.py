"""Models that no program can run, or whose names no file format holds: refused before anything is compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph.nodes import text

if TYPE_CHECKING:
    from onnx import GraphProto

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Control characters, line breaks among them."""


def check_graph(graph: GraphProto) -> None:
    """Raises CheckpointError for control characters in names, nodes without output, tensors of two nodes, cycles."""
    for name in _names(graph):
        if _CONTROL.search(name):
            raise CheckpointError(f"the name {name!r} has a control character: rename the node or tensor")
    makers: dict[str, int] = {}
    for i, node in enumerate(graph.node):
        if not node.output:
            raise CheckpointError(f"the {node.op_type} '{node.name}' has no output: export the model again")
        for output in filter(None, node.output):
            if makers.setdefault(output, i) != i:
                raise CheckpointError(f"two nodes write the tensor '{output}': export the model again")
    order = TopologicalSorter(
        {i: [makers[name] for name in node.input if name in makers] for i, node in enumerate(graph.node)}
    )
    try:
        order.prepare()
    except CycleError as error:
        node = graph.node[error.args[1][0]]
        name = node.name or next(iter(node.output), "")
        raise CheckpointError(
            f"the {node.op_type} '{name}' reads its own output in a cycle of nodes: export the model again"
        ) from None


def _names(graph: GraphProto) -> Iterator[str]:
    """The names of all nodes and tensors of the main graph, as text."""
    for node in graph.node:
        yield from map(text, (node.name, *node.input, *node.output))
    for each in (*graph.input, *graph.output, *graph.initializer):
        yield text(each.name)
