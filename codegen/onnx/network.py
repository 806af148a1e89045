"""The network of a bundle in plain values: nodes, constants, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from codegen.errors import CheckpointError
from codegen.onnx.nodes import ONNX_DOMAINS
from codegen.onnx.rest import LAYER_DOMAIN, LAYER_OPERATOR, Shape, Tensor, interface_of, tensor_of

if TYPE_CHECKING:
    from onnx import NodeProto


@dataclass(frozen=True)
class NetworkNode:
    """One operation; an optional input or output that is left out is an empty name."""

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    """Numbers, strings, lists of them, and arrays."""
    layer: str = ""
    """The compiled layer that this is; empty for ONNX's own operators."""

    def __str__(self) -> str:
        return f"{self.operator} {self.name or next(filter(None, self.outputs), '')}".rstrip()


@dataclass(frozen=True)
class Network:
    """A graph in an order in which it can run."""

    nodes: tuple[NetworkNode, ...]
    constants: Mapping[str, NDArray[Any]]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    opset: int
    shapes: Mapping[str, Shape]
    """Of the tensors whose shapes are known, as far as they are."""


def read_network(data: bytes) -> Network:
    """Reads what OnnxRest wrote. Raises CheckpointError for operators of other domains than ONNX's and the farm's."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load_model_from_string(data)
    inputs, outputs = interface_of(data)
    return Network(
        tuple(_node(node) for node in model.graph.node),
        {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer},
        inputs,
        outputs,
        max(each.version for each in model.opset_import if each.domain in ONNX_DOMAINS),
        {each.name: each.shape for each in (*inputs, *map(tensor_of, model.graph.value_info), *outputs)},
    )


def _node(node: NodeProto) -> NetworkNode:
    import onnx
    from onnx import helper, numpy_helper

    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        elif isinstance(value, bytes):
            value = value.decode(errors="replace")
        elif attribute.type in (attribute.GRAPH, attribute.GRAPHS, attribute.SPARSE_TENSOR):
            raise CheckpointError(f"{node.op_type} {node.name} has a sub-graph, which only ONNX programs run")
        attributes[attribute.name] = value
    is_layer = node.domain == LAYER_DOMAIN and node.op_type == LAYER_OPERATOR
    if not is_layer and node.domain not in ONNX_DOMAINS:
        raise CheckpointError(f"{node.op_type} {node.name} is an operator of the domain '{node.domain}', not ONNX's")
    layer = str(attributes.pop("layer")) if is_layer else ""
    return NetworkNode(node.op_type, node.name, tuple(node.input), tuple(node.output), attributes, layer)
