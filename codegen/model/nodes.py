"""A model's nodes with weights, in plain values: what they are called, and which layer each is or why it is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np

from codegen.errors import CheckpointError
from codegen.layers import Layer, Weights
from codegen.model.convolution import ConvAttributes, UnsupportedError, conv2d_spec
from codegen.model.input_shapes import Size
from codegen.model.stored_tensor import SparseStoredTensor, StoredTensor, read_weights

ONNX_DOMAINS = ("", "ai.onnx")

NOT_COMPILED = {
    "ConvTranspose": "transposed convolutions are not compiled, only 2-D convolutions are",
    "Gemm": "fully connected layers are not compiled, only 2-D convolutions are",
    "MatMul": "matrix products are not compiled, only 2-D convolutions are",
    "ConvInteger": "it computes on 8-bit integers; only float32 is compiled",
    "QLinearConv": "it computes on 8-bit integers; only float32 is compiled",
    "FusedConv": "it was made by onnxruntime's optimiser; give the model as it was before",
}
"""Operators beside Conv that carry weights, and why they are skipped."""


@dataclass(frozen=True)
class Node:
    """A node of an ONNX graph; an optional input or output that is left out is an empty name."""

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    integers: Mapping[str, tuple[int, ...]]
    """Attributes that hold integers; one integer is a list of one."""
    strings: Mapping[str, str]
    owner: str = ""
    """The sub-graph or function that the node is in; empty for the main graph."""


@dataclass(frozen=True)
class Tensors:
    """What is known of the tensors between the nodes, by their names."""

    constants: Mapping[str, StoredTensor | SparseStoredTensor]
    element_types: Mapping[str, str]
    sizes: Mapping[str, Size | None]

    def weights(self, node: Node, index: int, what: str) -> StoredTensor | SparseStoredTensor | None:
        """The float32 constant at one of the node's inputs, None if the node has no such input."""
        if len(node.inputs) <= index or not node.inputs[index]:
            return None
        if (constant := self.constants.get(node.inputs[index])) is None:
            raise UnsupportedError(
                f"its {what} are computed while the model runs; fold constants before or in the export"
            )
        if constant.element_type != "float32":
            raise UnsupportedError(f"its {what} are {constant.element_type}; only float32 is compiled")
        return constant


def read_node(node: Node, name: str, tensors: Tensors) -> Layer:
    """The layer that a node is.

    Raises UnsupportedError, UnknownSizeError, and CheckpointError for a node that no program could run.
    """
    if node.owner:
        raise UnsupportedError(f"it is inside {node.owner}; only the nodes of the main graph are compiled")
    if reason := NOT_COMPILED.get(node.operator):
        raise UnsupportedError(reason)
    if node.domain not in ONNX_DOMAINS:
        raise UnsupportedError(f"it is an operator of the domain '{node.domain}', not ONNX's Conv")
    kernel, bias = tensors.weights(node, 1, "weights"), tensors.weights(node, 2, "biases")
    if kernel is None or not node.outputs:
        raise CheckpointError("it has no weights or no output: export the model again")
    if len(kernel.shape) in (3, 5):
        raise UnsupportedError(f"it is a {len(kernel.shape) - 2}-D convolution; only 2-D convolutions are compiled")
    if (element_type := tensors.element_types.get(node.inputs[0], "float32")) != "float32":
        raise UnsupportedError(f"its input is {element_type}; only float32 is compiled")
    spec = conv2d_spec(conv_attributes(node), kernel.shape, tensors.sizes.get(node.inputs[0]))
    if bias is not None and bias.shape != (spec.kernels,):
        raise CheckpointError(
            f"its biases of the shape {list(bias.shape)} do not fit {spec.kernels} kernels: export the model again"
        )
    weights = read_weights(kernel, "weights")
    biases = np.zeros(spec.kernels, np.float32) if bias is None else read_weights(bias, "biases")
    return Layer(name, spec, Weights(weights, biases), node.inputs[0], node.outputs[0])


def conv_attributes(node: Node) -> ConvAttributes:
    """The attributes of a 2-D Conv. Raises CheckpointError if one has too many or too few numbers."""

    def integers(name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        values = node.integers.get(name, default)
        if len(values) != len(default):
            raise CheckpointError(f"its {name} are {list(values)}, not {len(default)} numbers: export the model again")
        return values

    return ConvAttributes(
        kernel_shape=integers("kernel_shape", (1, 1)) if "kernel_shape" in node.integers else None,
        strides=integers("strides", (1, 1)),
        pads=integers("pads", (0, 0, 0, 0)),
        dilations=integers("dilations", (1, 1)),
        group=integers("group", (1,))[0],
        auto_pad=node.strings.get("auto_pad", "NOTSET"),
    )


def unique_names(nodes: Sequence[Node]) -> list[str]:
    """Each node's own name; an empty or shared one gives way to the name of the node's output."""
    bearers = Counter(node.name for node in nodes)
    taken = {name for name, number in bearers.items() if name and number == 1}
    names = []
    for node in nodes:
        name = node.name
        if name not in taken or bearers[name] > 1:
            output = next(filter(None, node.outputs), node.operator)
            name = next(n for n in chain([output], (f"{output}_{i}" for i in count(2))) if n not in taken)
            taken.add(name)
        names.append(name)
    return names
