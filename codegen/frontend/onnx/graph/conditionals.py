"""Conditionals: If nodes whose branch is known before the model runs, folded into the nodes of that branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from codegen.frontend.onnx.graph.functions import sub_graphs

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

MOST_LEVELS = 50
"""Most levels of nested conditionals that are folded."""


def has_conditionals(graph: GraphProto) -> bool:
    """Whether the main graph has an If."""
    return any(node.op_type == "If" for node in graph.node)


def fold_conditionals(graph: GraphProto, branches: Mapping[str, bool]) -> bool:
    """Puts the nodes of each known branch in the place of its If; tells whether there was one.

    `branches` are the values of conditions, by the first output of their If. Conditionals of the branch stay.
    """
    taken = set(_names(graph))
    nodes: list[NodeProto] = []
    folded = False
    for node in graph.node:
        branch = _branch(node, branches)
        if branch is None:
            nodes.append(node)
        else:
            nodes += _inlined(graph, node, branch, taken)
            folded = True
    if folded:
        kept = [type(node).FromString(node.SerializeToString()) for node in nodes]  # the If that holds them goes
        del graph.node[:]
        graph.node.extend(kept)
    return folded


def _branch(node: NodeProto, branches: Mapping[str, bool]) -> GraphProto | None:
    if node.op_type != "If" or not node.output or node.output[0] not in branches:
        return None
    wanted = "then_branch" if branches[node.output[0]] else "else_branch"
    found = [attribute.g for attribute in node.attribute if attribute.name == wanted]
    return found[0] if found and len(found[0].output) == len(node.output) else None


def _inlined(graph: GraphProto, node: NodeProto, branch: GraphProto, taken: set[str]) -> Iterator[NodeProto]:
    """The nodes of a branch, which write the outputs of its If; its initializers go into the graph."""
    import onnx

    made = dict.fromkeys(name for each in branch.node for name in each.output if name)
    made |= dict.fromkeys(tensor.name for tensor in branch.initializer)
    names = {name: _free(name, taken) for name in made}
    for tensor in branch.initializer:
        copy = graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = names[tensor.name]
    for each in branch.node:
        copied = onnx.NodeProto()
        copied.CopyFrom(each)
        _rename(copied, names)
        copied.output[:] = [names.get(name, name) for name in copied.output]
        yield copied
    for inner, outer in zip(branch.output, node.output, strict=True):
        if outer:
            yield onnx.helper.make_node("Identity", [names.get(inner.name, inner.name)], [outer])


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Renames what a node and its sub-graphs read; ONNX forbids a sub-graph to define a name of the graph around it."""
    node.input[:] = [names.get(name, name) for name in node.input]
    for graph in sub_graphs(node):
        for inner in graph.node:
            _rename(inner, names)
        for output in graph.output:
            output.name = names.get(output.name, output.name)


def _free(name: str, taken: set[str]) -> str:
    """A name that no tensor of the main graph has yet."""
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


def _names(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from (*node.input, *node.output)
    for each in (*graph.input, *graph.output, *graph.initializer):
        yield each.name
