"""What is left of a model once its layers are compiled: an ONNX model in which each of them is one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.graph.constants import Constants
from codegen.frontend.onnx.graph.library_errors import serialized
from codegen.frontend.onnx.graph.shape_propagation import Tensor as Known
from codegen.ir.checkpoint import Layer

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

LAYER_DOMAIN = "farm"
LAYER_OPERATOR = "Layer"
"""A compiled layer: its attribute `layer` is its name, its inputs are the layer's input, its residual and its gate.

An input that a layer has not has no name, or is left out at the end.

Its output has the shape that the layer's operator gives it. Where the model reshapes or transposes that before the last
of the nodes that the layer computes, it is reshaped or transposed here behind the layer; the residual is of the model's
shape, as many elements.
"""


class OnnxRest:
    """A model as it was read, after which layers were compiled is known."""

    def __init__(self, model: ModelProto, constants: Constants, tensors: Mapping[str, Known]) -> None:
        """`tensors` are what is known of the tensors of the graph."""
        self._model = model
        self._constants = constants
        self._tensors = tensors
        self._producers = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}

    def without(self, layers: Sequence[Layer]) -> bytes:
        """The model with these layers as nodes of LAYER_DOMAIN, without what only they needed; equal for equal models.

        Constants are stored, however the model computes them. Raises CheckpointError if it would be larger than the
        2 GB that protobuf writes.
        """
        import onnx

        rest = onnx.ModelProto(ir_version=self._model.ir_version, producer_name="farm")
        rest.opset_import.extend(each for each in self._model.opset_import if each.domain != LAYER_DOMAIN)
        rest.opset_import.add(domain=LAYER_DOMAIN, version=1)
        graph = rest.graph
        graph.name = self._model.graph.name or "network"
        nodes, constants = self._needed({layer.output: layer for layer in layers})
        graph.node.extend(nodes)
        graph.initializer.extend(constants)
        graph.input.extend(value for value in self._model.graph.input if value.name not in self._constants)
        graph.output.extend(self._model.graph.output)
        outer = {value.name for value in (*graph.input, *graph.output)}
        made = dict.fromkeys(name for node in nodes for name in node.output if name and name not in outer)
        graph.value_info.extend(value for name in made if (value := self._value(name)) is not None)
        return serialized(rest, "what is left beside the compiled layers")

    def _needed(self, layers: dict[str, Layer]) -> tuple[list[NodeProto], list[TensorProto]]:
        """Nodes in graph order and constants by name, from the outputs backwards."""
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
                waiting += _reads(node)
        return [node for position in sorted(nodes) for node in nodes[position]], [
            constants[name] for name in sorted(constants)
        ]

    def _layer_nodes(self, layer: Layer) -> list[NodeProto]:
        """The layer, then what reshapes or transposes its output."""
        import onnx

        reshaping = [self._model.graph.node[self._producers[name]] for name in layer.reshaped]
        names = [node.input[0] for node in reshaping[:1]] + [node.output[0] for node in reshaping[:-1]] + [layer.output]
        made = [layer_node(layer, names[0])]
        for original, before, after in zip(reshaping, names, names[1:], strict=False):
            node = onnx.NodeProto()
            node.CopyFrom(original)
            node.input[0], node.output[0] = before, after
            made.append(node)
        return made

    def _value(self, name: str) -> ValueInfoProto | None:
        """Type and shape of a tensor, if they are known; a dimension that grows with the images is left open."""
        from onnx import helper

        known = self._tensors.get(name)
        if known is None or known.shape is None or not known.element_type:
            return None
        shape = [each if isinstance(each, int | str) else None for each in known.shape]
        return helper.make_tensor_value_info(name, known.element_type, shape)

    def _constant(self, name: str) -> TensorProto | None:
        """A tensor that is known before the model runs; None for others, and for what only the model can compute."""
        from onnx import numpy_helper

        if name not in self._constants:
            return None
        try:
            return numpy_helper.from_array(self._constants.read(name), name)
        except UnsupportedError:
            return None


Shape: TypeAlias = tuple[int | str | None, ...]
"""A name stands for a size that the model leaves open, None for one that it does not even name."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a network."""

    name: str
    dtype: str
    """NumPy's name."""
    shape: Shape


def interface_of(rest: bytes) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs and the outputs of the model that `without` wrote."""
    import onnx

    graph = onnx.load_model_from_string(rest).graph
    return tuple(map(tensor_of, graph.input)), tuple(map(tensor_of, graph.output))


def tensor_of(value: ValueInfoProto) -> Tensor:
    """Reads what ONNX says of a tensor."""
    from onnx import helper

    tensor = value.type.tensor_type
    shape = tuple(each.dim_value or each.dim_param or None for each in tensor.shape.dim)
    return Tensor(value.name, helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, shape)


def layer_node(layer: Layer, output: str) -> NodeProto:
    """The node of a layer that writes this tensor."""
    from onnx import helper

    inputs = [layer.input, layer.residual, layer.gate]
    while not inputs[-1]:
        inputs.pop()
    return helper.make_node(LAYER_OPERATOR, inputs, [output], layer.name, domain=LAYER_DOMAIN, layer=layer.name)


def _reads(node: NodeProto) -> list[str]:
    """What a node reads, its sub-graphs included; names that these define themselves do no harm."""
    names = list(node.input)
    for attribute in node.attribute:
        for graph in [attribute.g] * attribute.HasField("g") + list(attribute.graphs):
            for inner in graph.node:
                names += _reads(inner)
            names += [output.name for output in graph.output]
    return names
