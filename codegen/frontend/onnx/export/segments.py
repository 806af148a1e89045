"""Segments of a bundle's network: the operators between its compiled layers, as ONNX models of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from codegen.errors import CheckpointError
from codegen.frontend.onnx.export.network import constant_bytes
from codegen.frontend.onnx.export.residual_graph import LAYER_DOMAIN, Tensor, interface_of
from codegen.frontend.onnx.graph.functions import reads, sub_graphs
from codegen.frontend.onnx.graph.library_errors import model_errors, serialized
from codegen.frontend.onnx.graph.nodes import text

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto


@dataclass(frozen=True)
class LayerCall:
    """A compiled layer in a network."""

    layer: str
    inputs: tuple[str, ...]
    """Input, residual and gate; those that the layer lacks are left out."""
    output: str


@dataclass(frozen=True, eq=False)
class Segment:
    """Operators that run together, between compiled layers."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    network: ModelProto
    """The operators and their constants, without inputs and outputs."""

    def model(self, types: Mapping[str, np.dtype]) -> bytes:
        """The segment as a model; `types` are NumPy's types of its inputs, which are known once the network runs."""
        import onnx
        from onnx import helper

        model = onnx.ModelProto()
        model.CopyFrom(self.network)
        for name in self.inputs:
            kind = helper.np_dtype_to_tensor_dtype(types[name])
            model.graph.input.append(helper.make_tensor_value_info(name, kind, None))
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.outputs)
        return serialized(model, "the operators between compiled layers")


@dataclass(frozen=True)
class SegmentedNetwork:
    """A network as segments and layers, in an order in which they can run."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    steps: tuple[Segment | LayerCall, ...]


def segmented(data: bytes, beside: bytes = b"") -> SegmentedNetwork:
    """Divides an exported network into as few segments as its layers allow.

    `beside` are the bytes of the file named to `with_constants_beside`. Raises CheckpointError for anything but an
    exported network.
    """
    from google.protobuf.message import DecodeError

    try:
        return _segmented(data, beside)
    except (DecodeError, KeyError, TypeError, ValueError, *model_errors()) as error:
        raise CheckpointError(f"it is not a network that farm exported ({error})") from error


def _segmented(data: bytes, beside: bytes) -> SegmentedNetwork:
    import onnx

    model = onnx.load_model_from_string(data)
    graph = model.graph
    for tensor in graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            held = bytes(constant_bytes(tensor, beside))
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = held
    if any(tensor.data_location == tensor.EXTERNAL for tensor in _tensors(graph)):
        raise CheckpointError("a constant is stored outside its files")  # onnxruntime would read any file named there
    constants = {tensor.name: tensor for tensor in graph.initializer}
    inputs, outputs = interface_of(data)
    phases = _phases(graph.node, [each.name for each in inputs], constants)
    wanted = {each.name for each in outputs}
    if kept := wanted & constants.keys():
        raise CheckpointError(f"the output {min(kept)} is a constant")
    steps: list[Segment | LayerCall] = []
    for phase in range(max(phases, default=0) + 1):
        inside = [node for node, of in zip(graph.node, phases, strict=True) if of == phase]
        others = [node for node, of in zip(graph.node, phases, strict=True) if of != phase or _is_layer(node)]
        operators = [node for node in inside if not _is_layer(node)]
        if operators:
            read = wanted | {name for node in others for name in reads(node)}
            steps.append(_segment(model, operators, read, constants))
        steps += [_call(node) for node in inside if _is_layer(node)]
    return SegmentedNetwork(inputs, outputs, tuple(steps))


def _phases(nodes: Iterable[NodeProto], inputs: Sequence[str], constants: Collection[str]) -> list[int]:
    """The phase of each node: in a phase all operators run first, in one segment, and then all layers."""
    of_operators, of_layers = dict.fromkeys(("", *inputs, *constants), 0), dict.fromkeys(("", *inputs), 0)
    """The first phase in which an operator, or a layer, can read each tensor."""
    found = []
    for node in nodes:
        is_layer = _is_layer(node)
        known = of_layers if is_layer else of_operators
        inner = [known.get(name, 0) for name in reads(node)]  # names of a sub-graph's own are among them
        phase = max([*inner, *(known[name] for name in node.input)], default=0)
        of_layers |= dict.fromkeys(filter(None, node.output), phase)
        of_operators |= dict.fromkeys(filter(None, node.output), phase + is_layer)
        found.append(phase)
    return found


def _segment(
    model: ModelProto, nodes: list[NodeProto], read: set[str], constants: Mapping[str, TensorProto]
) -> Segment:
    import onnx

    made = dict.fromkeys(name for node in nodes for name in node.output if name)
    given = dict.fromkeys(name for node in nodes for name in reads(node) if name and name not in made)
    inner = {name for node in nodes for graph in sub_graphs(node) for name in _made_inside(graph)}
    network = onnx.ModelProto(ir_version=model.ir_version, producer_name="farm")
    network.opset_import.extend(each for each in model.opset_import if each.domain != LAYER_DOMAIN)
    network.graph.name = "segment"
    network.graph.node.extend(nodes)
    network.graph.initializer.extend(constants[name] for name in given if name in constants)
    inputs = tuple(name for name in given if name not in constants and name not in inner)
    return Segment(inputs, tuple(name for name in made if name in read), network)


def _is_layer(node: NodeProto) -> bool:
    return node.domain == LAYER_DOMAIN


def _call(node: NodeProto) -> LayerCall:
    [layer] = [attribute.s for attribute in node.attribute if attribute.name == "layer"]
    return LayerCall(layer.decode(), tuple(text(name) for name in node.input if name), text(node.output[0]))


def _made_inside(graph: GraphProto) -> Iterator[str]:
    """Names that a sub-graph defines; ONNX forbids those of the graph around it."""
    yield from (each.name for each in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from node.output
        for inner in sub_graphs(node):
            yield from _made_inside(inner)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every constant of a graph and its sub-graphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
        for inner in sub_graphs(node):
            yield from _tensors(inner)
