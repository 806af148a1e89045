"""The residual graph of a model: an ONNX model in which each compiled layer is one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.graph.constants import Constants
from codegen.frontend.onnx.graph.functions import reads
from codegen.frontend.onnx.graph.library_errors import serialized
from codegen.frontend.onnx.graph.nodes import text
from codegen.frontend.onnx.graph.shape_propagation import Tensor as Known
from codegen.ir.checkpoint import Layer

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

LAYER_DOMAIN = "farm"
LAYER_OPERATOR = "Layer"
"""Operator of a compiled layer. Its attribute `layer` is the layer's name, its inputs are input, residual and gate.

A missing residual or gate has an empty name, or is omitted at the end. The output has the shape of the layer's own
operator. View nodes inside a fused layer follow the layer node here. The residual has the model's shape, with as many
elements as the output.
"""


class OnnxResidualGraph:
    """The residual graph of an ONNX model, for any choice of compiled layers."""

    def __init__(self, model: ModelProto, constants: Constants, tensors: Mapping[str, Known]) -> None:
        """`tensors` are the inferred types and shapes of the graph's tensors."""
        self._model = model
        self._constants = constants
        self._tensors = tensors
        self._producers = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
        self._ending = "/compiled"
        """Ending of a name that the model does not have, for a tensor that differs from the model's."""
        while any(name.endswith(self._ending) for name in {*self._producers, *tensors}):
            self._ending += "_"

    def with_layers(self, layers: Sequence[Layer]) -> bytes:
        """The model with these layers as nodes of LAYER_DOMAIN, without nodes and constants that only they need.

        Equal models give equal bytes. Computed constants are stored as values. Raises CheckpointError if the result
        exceeds protobuf's limit of 2 GB.
        """
        import onnx

        model = onnx.ModelProto(ir_version=self._model.ir_version, producer_name="farm")
        model.opset_import.extend(each for each in self._model.opset_import if each.domain != LAYER_DOMAIN)
        model.opset_import.add(domain=LAYER_DOMAIN, version=1)
        graph = model.graph
        graph.name = self._model.graph.name or "network"
        nodes, constants = self._needed({layer.output: layer for layer in layers})
        graph.node.extend(nodes)
        graph.initializer.extend(constants)
        graph.input.extend(value for value in self._model.graph.input if value.name not in self._constants)
        graph.output.extend(map(self._output, self._model.graph.output))
        outer = {value.name for value in (*graph.input, *graph.output)}
        made = dict.fromkeys(name for node in nodes for name in node.output if name and name not in outer)
        graph.value_info.extend(value for name in made if (value := self._value(name)) is not None)
        return serialized(model, "the model without its compiled layers")

    def _needed(self, layers: dict[str, Layer]) -> tuple[list[NodeProto], list[TensorProto]]:
        """The nodes that the outputs need, in graph order, and the constants, by name."""
        nodes: dict[int, list[NodeProto]] = {}
        constants: dict[str, TensorProto] = {}
        seen: set[str] = set()
        waiting = [output.name for output in self._model.graph.output]
        while waiting:
            name = waiting.pop()
            if not name or name in seen:
                continue
            seen.add(name)
            layer = layers.get(name)
            if layer is not None:
                nodes[self._producers[name]] = made = self._layer_nodes(layer)
                waiting += [*made[0].input, *(each for node in made[1:] for each in node.input[1:])]
            elif (constant := self._constant(name)) is not None:
                constants[name] = constant
            elif name in self._producers:
                position = self._producers[name]
                node = self._model.graph.node[position]
                nodes[position] = [node]
                waiting += reads(node)
        return [node for position in sorted(nodes) for node in nodes[position]], [
            constants[name] for name in sorted(constants)
        ]

    def _layer_nodes(self, layer: Layer) -> list[NodeProto]:
        """The layer's node, then the view nodes fused into the layer.

        In the model a step of the layer follows the views. Here they follow it, so their inputs have other values.
        """
        import onnx

        reshaping = [self._model.graph.node[self._producers[name]] for name in layer.reshaped]
        names = [*(node.input[0] + self._ending for node in reshaping), layer.output]
        made = [layer_node(layer, names[0])]
        for original, before, after in zip(reshaping, names, names[1:], strict=False):
            node = onnx.NodeProto()
            node.CopyFrom(original)
            node.input[0], node.output[0] = before, after
            made.append(node)
        return made

    def _value(self, name: str) -> ValueInfoProto | None:
        """Type and shape of a tensor, if known; a dimension that depends on the number of images is left open."""
        from onnx import helper

        known = self._tensors.get(name.removesuffix(self._ending))
        if known is None or known.shape is None or not known.element_type:
            return None
        shape = [each if isinstance(each, int | str) else None for each in known.shape]
        return helper.make_tensor_value_info(name, known.element_type, shape)

    def _output(self, declared: ValueInfoProto) -> ValueInfoProto:
        """An output of the model, with the inferred shape if the file gives none, or one for other input shapes."""
        if declared.type.tensor_type.HasField("shape"):
            return declared
        return self._value(declared.name) or declared

    def _constant(self, name: str) -> TensorProto | None:
        """A constant as an initializer; None for other tensors and for constants that cannot be computed here."""
        from onnx import numpy_helper

        if name not in self._constants:
            return None
        try:
            return numpy_helper.from_array(self._constants.read(name), name)
        except UnsupportedError:
            return None


Shape: TypeAlias = tuple[int | str | None, ...]
"""A string is the symbol of an open dimension, None an open dimension without a symbol."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a network."""

    name: str
    dtype: str
    """NumPy's type name."""
    shape: Shape


def interface_of(model: bytes) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Inputs and outputs of an exported model."""
    import onnx

    graph = onnx.load_model_from_string(model).graph
    return tuple(map(tensor_of, graph.input)), tuple(map(tensor_of, graph.output))


def inputs_of(model: bytes) -> tuple[Tensor, ...]:
    """Inputs of a model, whose outputs may lack types."""
    import onnx

    return tuple(map(tensor_of, onnx.load_model_from_string(model).graph.input))


def tensor_of(value: ValueInfoProto) -> Tensor:
    """Name, type and shape of an ONNX value."""
    from onnx import helper

    tensor = value.type.tensor_type
    shape = tuple(each.dim_value or text(each.dim_param) or None for each in tensor.shape.dim)
    return Tensor(text(value.name), helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, shape)


def layer_node(layer: Layer, output: str) -> NodeProto:
    """The node of a compiled layer with this output tensor."""
    from onnx import helper

    inputs = [layer.input, layer.residual, layer.gate]
    while not inputs[-1]:
        inputs.pop()
    return helper.make_node(LAYER_OPERATOR, inputs, [output], layer.name, domain=LAYER_DOMAIN, layer=layer.name)
