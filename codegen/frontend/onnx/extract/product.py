"""The product of weights and input that a node computes: a layer before anything is folded into it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from codegen.frontend.onnx.diagnostics import UnsupportedError, compiled_type
from codegen.frontend.onnx.extract.weights import Doubles, finite_weights, rounded
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import Node
from codegen.ir.checkpoint import FloatArray
from codegen.ir.layer_spec import DataType, LayerSpec


@dataclass(frozen=True, eq=False)
class Product:
    """alpha * kernel * input + bias: values that the node's data type has, but for alpha and bias."""

    spec: LayerSpec
    """Without an epilogue."""
    kernel: FloatArray
    """The weights, in the spec's weights_shape."""
    bias: Doubles
    """[K]."""
    input: str
    output: str
    output_rank: int | None
    channel_axis: int | None
    """The output's axis of the K output channels, counted from the end if negative; None if it has no such axis."""
    alpha: float = 1.0
    residual: str = ""
    """What the node itself adds to the product, of the shape of the output."""
    rows: int | None = 1
    """Rows per image of a Linear; None if not known."""

    @cached_property
    def peaks(self) -> FloatArray:
        """[K, 1]: the largest magnitude in each kernel."""
        rows = self.kernel.reshape(len(self.kernel), -1)
        peaks: FloatArray = np.maximum(rows.max(axis=1, keepdims=True), -rows.min(axis=1, keepdims=True))
        return peaks


@dataclass(frozen=True, eq=False)
class Operands:
    """The constants of a node, finite, and their type, which the node's input has too."""

    kernel: FloatArray
    """As the node has them."""
    bias: FloatArray | None
    data_type: DataType


def read_operands(node: Node, graph: Graph, *, weights: int = 1, activation: int = 0) -> Operands:
    """The weights, at the given place among the node's inputs, and the biases, in third place if there are any.

    Weights of float32 beside an input of half precision, which is what exporters leave when they fold normalisations
    into them, are rounded to the input's type. Raises UnsupportedError for those that are computed while the model
    runs, or of a type that is not compiled.
    """
    kernel = _constant(node.input(weights), graph, "weights")
    weights_type = compiled_type(kernel.dtype.name, "weights are")
    data_type = compiled_type(graph.element_types.get(node.input(activation), weights_type), "input is")
    values = _in_type(kernel, "weights", data_type)
    bias = _in_type(_constant(node.input(2), graph, "biases"), "biases", data_type) if node.input(2) else None
    return Operands(values, bias, data_type)


def _in_type(constant: np.ndarray, what: str, data_type: DataType) -> FloatArray:
    own_type = compiled_type(constant.dtype.name, f"{what} are")
    if own_type not in (data_type, "float32"):
        raise UnsupportedError(
            "types differ", f"its input is {data_type} and its {what} {own_type}; only one type for both is compiled"
        )
    values = finite_weights(constant, what)
    if own_type != data_type:
        values = rounded(values.astype(np.float64), data_type)
        if not np.isfinite(values).all():
            raise UnsupportedError("weights not finite", f"its {what} are too large for the {data_type} of its input")
    return values


def _constant(name: str, graph: Graph, what: str) -> np.ndarray:
    if name not in graph.constants:
        raise UnsupportedError(
            f"{what} computed at run time",
            f"its {what} are computed while the model runs; fold constants before or in the export",
        )
    return graph.constants.read(name)
