"""Subgraphs of a network that the C runtime runs with PyTorch's bits; PyTorch runs the operators between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.frontend.onnx.export.network import Network, NetworkNode
from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.ir.layer_spec import LayerSpec
from farm.runtime.hybrid import layer_plan
from farm.runtime.lowering import RefusedError
from farm.runtime.planner import Planned, plan_network

SUBGRAPH = "farm.Subgraph"
"""Operator of the node that stands for a subgraph."""
EXACT = frozenset(
    {"Add", "Concat", "Flatten", "Identity", "MaxPool", "Mul", "Reshape", "Squeeze", "Sub", "Sum", "Unsqueeze"}
)
"""Operators of which the runtime's kernels give PyTorch's bits: they neither choose an order of additions nor round."""


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Compiled layers and operators between them, as a network of its own."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    planned: Planned
    layer: LayerSpec | None = None
    """The only layer, if the plan is of that alone; its rows are those of a Linear."""


def divide(network: Network, specs: Mapping[str, LayerSpec]) -> tuple[Network, dict[str, Subgraph]]:
    """The network with subgraphs as single nodes, and these by the layer names of their nodes.

    They are as large as the operators between them allow. One that the runtime does not run is divided into its layers.
    """
    nodes: list[NetworkNode] = []
    subgraphs: dict[str, Subgraph] = {}
    for phase in _phases(network, _typed(network, specs)):
        for group in _connected(network, phase):
            for each in _subgraphs(network, group, specs):
                if isinstance(each, Subgraph):
                    name = f"subgraph {len(subgraphs)}"
                    subgraphs[name] = each
                    nodes.append(NetworkNode(SUBGRAPH, "", each.inputs, each.outputs, {}, name))
                else:
                    nodes.append(each)
    return replace(network, nodes=tuple(nodes)), subgraphs


def _subgraphs(
    network: Network, nodes: Sequence[NetworkNode], specs: Mapping[str, LayerSpec]
) -> list[NetworkNode | Subgraph]:
    """One subgraph of connected nodes, or if the runtime does not run it, one for each layer."""
    if not any(node.layer for node in nodes):
        return [*nodes]
    try:
        part = _part(network, nodes, specs)
        names = tuple(each.name for each in part.inputs), tuple(each.name for each in part.outputs)
        return [Subgraph(*names, plan_network(part, specs))]
    except (RefusedError, ValueError):  # of sizes that differ if all inputs had as many images
        return [_alone(node, specs[node.layer]) if node.layer else node for node in nodes]


def _alone(node: NetworkNode, spec: LayerSpec) -> Subgraph:
    planned = Planned(layer_plan(node.layer, spec), b"", {})
    return Subgraph(tuple(filter(None, node.inputs)), node.outputs, planned, spec)


def _typed(network: Network, specs: Mapping[str, LayerSpec]) -> frozenset[str]:
    """Tensors that are known to have the layers' data type; none if the layers have several."""
    types = {spec.data_type for spec in specs.values()}
    if len(types) > 1:
        return frozenset()
    found = {each.name for each in network.inputs if each.dtype in types}
    for node in network.nodes:
        if node.layer:
            found.update(filter(None, (*node.inputs, *node.outputs)))
        elif node.operator in EXACT and found.issuperset(_computed(network, node)):
            found.update(node.outputs)
    return frozenset(found)


def _computed(network: Network, node: NetworkNode) -> list[str]:
    """The inputs of a node that are not constants."""
    return [name for name in node.inputs if name and name not in network.constants]


def _phases(network: Network, typed: Collection[str]) -> Iterator[list[NetworkNode]]:
    """The nodes in an order in which they can run: by turns as many others, and as large a subgraph, as possible."""
    known = {*network.constants, *(each.name for each in network.inputs)}
    waiting = list(network.nodes)
    fits = True
    while waiting:
        fits = not fits
        taken, rest = [], []
        for node in waiting:
            if _fits(network, node, typed) == fits and known.issuperset(_computed(network, node)):
                taken.append(node)
                known.update(node.outputs)
            else:
                rest.append(node)
        waiting = rest
        yield taken


def _connected(network: Network, nodes: Sequence[NetworkNode]) -> list[list[NetworkNode]]:
    """Groups of nodes that share tensors, as only those certainly have as many images."""
    groups: list[tuple[set[str], list[NetworkNode]]] = []
    for node in nodes:
        names, members = {*_computed(network, node), *node.outputs}, [node]
        for group in [each for each in groups if not names.isdisjoint(each[0])]:
            groups.remove(group)
            names, members = names | group[0], [*group[1], *members]
        groups.append((names, members))
    places = {id(node): i for i, node in enumerate(nodes)}
    return [sorted(members, key=lambda node: places[id(node)]) for _, members in groups]


def _fits(network: Network, node: NetworkNode, typed: Collection[str]) -> bool:
    """Whether a subgraph may contain the node."""
    if node.layer:
        return True
    computed = _computed(network, node)
    return node.operator in EXACT and len(node.outputs) == 1 and bool(computed) and set(computed) <= set(typed)


def _part(network: Network, nodes: Sequence[NetworkNode], specs: Mapping[str, LayerSpec]) -> Network:
    """Some nodes as a network of their own. Raises RefusedError for an input that is not known to have images."""
    inside = set(map(id, nodes))
    made = dict.fromkeys(name for node in nodes for name in node.outputs)
    read = dict.fromkeys(name for node in nodes for name in _computed(network, node) if name not in made)
    later = {each.name for each in network.outputs}
    later.update(name for node in network.nodes if id(node) not in inside for name in node.inputs)
    shapes = {name: network.shapes.get(name, ()) for name in read}
    is_open = not isinstance(network.inputs[0].shape[0], int)
    if any(not shape or isinstance(shape[0], int) == is_open for shape in shapes.values()):
        raise RefusedError("an input has no images")
    dtype = next(specs[node.layer].data_type for node in nodes if node.layer)
    inputs = tuple(Tensor(name, dtype, shape) for name, shape in shapes.items())
    outputs = tuple(Tensor(name, dtype, ()) for name in made if name in later)
    return replace(network, nodes=tuple(nodes), inputs=inputs, outputs=outputs)
