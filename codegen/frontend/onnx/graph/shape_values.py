"""Values that follow from shapes: nodes whose outputs are known before the model runs, folded into constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from codegen.frontend.onnx.graph.functions import reads

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


def fold_shape_values(graph: GraphProto, values: Mapping[str, NDArray[Any]]) -> bool:
    """Makes tensors with known values initializers, and drops the nodes that only they needed; tells if it did.

    Outputs of the graph stay outputs of nodes.
    """
    from onnx import numpy_helper

    outputs = {output.name for output in graph.output}
    folded = [node for node in graph.node if _is_known(node, values, outputs)]
    if not folded:
        return False
    names = {name for node in folded for name in node.output if name}
    graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in sorted(names))
    orphans = {name for node in folded for name in reads(node)}
    kept: list[NodeProto] = []
    read = set(outputs)
    for node in reversed(graph.node):
        mine = set(filter(None, node.output))
        if mine <= names:
            continue
        if mine <= orphans - read:
            orphans |= set(reads(node))
            continue
        kept.append(type(node).FromString(node.SerializeToString()))
        read |= set(reads(node))
    del graph.node[:]
    graph.node.extend(reversed(kept))
    return True


def _is_known(node: NodeProto, values: Mapping[str, NDArray[Any]], outputs: set[str]) -> bool:
    made = set(filter(None, node.output))
    return bool(made) and made <= values.keys() and not made & outputs
