"""The network of a bundle read into plain values: nodes, constants, inputs and outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codegen.errors import CheckpointError
from codegen.frontend.onnx.export.residual_graph import (
    LAYER_DOMAIN,
    LAYER_OPERATOR,
    Shape,
    Tensor,
    interface_of,
    tensor_of,
)
from codegen.frontend.onnx.graph.library_errors import model_errors
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, text

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

LEAST_BYTES_BESIDE = 65_536
"""Least size of a constant that is stored beside the network; most models then need no second file."""


@dataclass(frozen=True)
class NetworkNode:
    """One operation; an omitted optional input or output has an empty name."""

    operator: str
    """ONNX's name; operators of other domains have the domain before it, as in com.microsoft.FusedConv."""
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    """Numbers, strings, lists of them, and arrays."""
    layer: str = ""
    """Name of the compiled layer; empty for ONNX's own operators."""

    def __str__(self) -> str:
        return f"{self.operator} {self.name or next(filter(None, self.outputs), '')}".rstrip()


@dataclass(frozen=True)
class Network:
    """A graph with its nodes in an order in which they can run."""

    nodes: tuple[NetworkNode, ...]
    constants: Mapping[str, NDArray[Any]]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    opset: int
    shapes: Mapping[str, Shape]
    """Shapes of tensors by name, where known."""


def read_network(data: bytes, beside: bytes = b"") -> Network:
    """Reads an exported network; `beside` are the bytes of the file named to `with_constants_beside`.

    Raises CheckpointError for anything but an exported network, sparse attributes, and constants outside that file.
    """
    from google.protobuf.message import DecodeError

    try:
        return _read_network(data, beside)
    except (DecodeError, KeyError, TypeError, *model_errors()) as error:
        raise CheckpointError(f"it is not a network that farm exported ({error})") from error


def _read_network(data: bytes, beside: bytes) -> Network:
    import onnx

    model = onnx.load_model_from_string(data)
    inputs, outputs = interface_of(data)
    return Network(
        tuple(_node(node) for node in model.graph.node),
        {text(tensor.name): _constant(tensor, beside) for tensor in model.graph.initializer},
        inputs,
        outputs,
        max(each.version for each in model.opset_import if each.domain in ONNX_DOMAINS),
        {each.name: each.shape for each in (*inputs, *map(tensor_of, model.graph.value_info), *outputs)},
    )


def with_constants_beside(data: bytes, location: str, offsets: Mapping[bytes, int]) -> bytes:
    """The network with its large constants as external data in the file `location`, where that file holds them.

    `offsets` are the constants' offsets in the file, by the SHA-256 of their bytes.
    """
    import onnx

    model = onnx.load_model_from_string(data)
    found = False
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) >= LEAST_BYTES_BESIDE:
            offset = offsets.get(hashlib.sha256(tensor.raw_data).digest())
            if offset is not None:
                entries = {"location": location, "offset": offset, "length": len(tensor.raw_data)}
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL
                for key, value in entries.items():
                    tensor.external_data.add(key=key, value=str(value))
                found = True
    return bytes(model.SerializeToString(deterministic=True)) if found else data


def _constant(tensor: TensorProto, beside: bytes) -> NDArray[Any]:
    from onnx import helper, numpy_helper

    if tensor.data_location != tensor.EXTERNAL:
        return numpy_helper.to_array(tensor)
    held = constant_bytes(tensor, beside).view(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return held.reshape(tuple(tensor.dims))


def constant_bytes(tensor: TensorProto, beside: bytes) -> NDArray[np.uint8]:
    """The bytes of a constant that is stored in the file `beside`. Raises CheckpointError if they are not in it."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    first, count = int(entries["offset"]), int(entries["length"])
    if min(first, count) < 0 or first + count > len(beside):
        raise CheckpointError(f"{entries['location']} does not hold {tensor.name}: it belongs to another network")
    return np.frombuffer(beside, np.uint8, count, first)


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
        elif attribute.type in (attribute.GRAPH, attribute.GRAPHS):
            continue  # no supported operator has a sub-graph
        elif attribute.type == attribute.SPARSE_TENSOR:
            raise CheckpointError(f"{node.op_type} {node.name} has a sparse constant: export it as a dense one")
        attributes[text(attribute.name)] = value
    is_layer = node.domain == LAYER_DOMAIN and node.op_type == LAYER_OPERATOR
    operator = text(node.op_type)
    if not is_layer and node.domain not in ONNX_DOMAINS:
        operator = f"{text(node.domain)}.{operator}"
    layer = str(attributes.pop("layer")) if is_layer else ""
    return NetworkNode(
        operator, text(node.name), tuple(map(text, node.input)), tuple(map(text, node.output)), attributes, layer
    )
