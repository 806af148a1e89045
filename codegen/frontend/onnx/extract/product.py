"""The product of weights and input that a node computes: a layer before folding and fusion."""

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
    """alpha * kernel * input + bias; all values but alpha and bias are exact in the spec's data type."""

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
    """Axis of the K output channels in the output, counted from the end if negative; None without such an axis."""
    alpha: float = 1.0
    residual: str = ""
    """Tensor of the output's shape that the node itself adds; empty if none."""
    rows: int | None = 1
    """Rows per image of a Linear; None if unknown."""

    @cached_property
    def peaks(self) -> FloatArray:
        """The largest weight magnitude of each output channel, [K, 1]."""
        rows = self.kernel.reshape(len(self.kernel), -1)
        peaks: FloatArray = np.maximum(rows.max(axis=1, keepdims=True), -rows.min(axis=1, keepdims=True))
        return peaks


@dataclass(frozen=True, eq=False)
class Operands:
    """The finite constants of a node, and the data type of constants and input."""

    kernel: FloatArray
    """The weights in the node's own layout."""
    bias: FloatArray | None
    data_type: DataType


def read_operands(node: Node, graph: Graph, *, weights: int = 1, activation: int = 0) -> Operands:
    """The weights and biases of a node; `weights` and `activation` are indices of its inputs, biases are input 2.

    float32 weights with a half-precision input, as exporters leave after folding a normalisation, are rounded to the
    input's type. Raises UnsupportedError for operands computed at run time or of a type that is not compiled, and
    CheckpointError for NaN or infinity.
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
