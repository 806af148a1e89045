"""Extraction of Gemm and MatMul nodes with one constant operand as fully connected layers."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from codegen.errors import CheckpointError
from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.extract.product import Operands, Product, read_operands
from codegen.frontend.onnx.extract.weights import Doubles
from codegen.frontend.onnx.graph.dimensions import in_words
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import Node
from codegen.ir.checkpoint import FloatArray
from codegen.ir.layer_spec import Linear

ALPHA = BETA = 1.0


def gemm(node: Node, graph: Graph) -> Product:
    """The product of a Gemm, alpha * A * B + beta * C: B is constant, or A is constant and B has one column.

    C is constant (biases), or has the output's shape and a beta of 1 (a residual, as optimisers write it).
    Raises UnsupportedError if the node is not compiled, and CheckpointError for an invalid node.
    """
    left = _constant_is_left(node, graph)
    residual = _residual(node, graph)
    product = replace(node, inputs=node.inputs[:2]) if residual else node
    operands = read_operands(product, graph, weights=1 - left, activation=int(left))
    kernel = operands.kernel
    if kernel.ndim != 2 or min(kernel.shape) < 1:
        raise CheckpointError(f"its weights have the shape {list(kernel.shape)}, not [C, K]: export the model again")
    activation = node.inputs[int(left)]
    size = graph.size(activation)
    if size is not None and len(size) != 2:
        raise _misfit(kernel, activation, graph)
    transposed = [bool(node.integer(name, 0)) for name in ("transA", "transB")]
    if transposed[1 - left] == left:  # [C, K] on the right, [K, C] on the left
        kernel = kernel.T
    outputs, inputs = kernel.shape
    # A row's channels must be contiguous in memory: [M, C], or [C, M] with M = 1.
    channels_last = transposed[int(left)] == left
    channels, other = (None, None) if size is None else (size[1], size[0]) if channels_last else (size[0], size[1])
    if channels not in (None, inputs):
        raise _misfit(kernel, activation, graph)
    if other != 1 and (left or not channels_last):
        raise _columns(activation, graph)
    return Product(
        Linear(inputs, outputs, data_type=operands.data_type),
        np.ascontiguousarray(kernel),
        _gemm_bias(operands, outputs, left) * node.floats.get("beta", BETA),
        activation,
        node.outputs[0],
        output_rank=2,
        channel_axis=0 if left else 1,
        alpha=node.floats.get("alpha", ALPHA),
        residual=residual,
        rows=graph.rows(activation, slice(1) if channels_last else slice(1, 2)),
    )


def matmul(node: Node, graph: Graph) -> Product:
    """The product of a MatMul: x [..., C] times constant [C, K], or constant [K, C] times a column, [C] or [..., C, 1].

    Raises UnsupportedError if the node is not compiled, and CheckpointError for an invalid node.
    """
    left = _constant_is_left(node, graph)
    operands = read_operands(node, graph, weights=1 - left, activation=int(left))
    activation = node.inputs[int(left)]
    kernel = operands.kernel
    size = graph.size(activation)
    rank = None if size is None else max(max(len(size), kernel.ndim) - (len(size) == 1) - (kernel.ndim == 1), 0)
    if prod(kernel.shape[:-2]) > 1:
        raise UnsupportedError(
            "several weight matrices",
            f"its weights of the shape {list(kernel.shape)} are several matrices; only one is compiled",
        )
    if kernel.size == 0 or kernel.ndim == 0:
        raise CheckpointError(f"its weights have the shape {list(kernel.shape)}, not [C, K]: export the model again")
    single = kernel.ndim == 1  # one output channel, for which the output has no axis
    matrix: FloatArray = kernel.reshape(1, -1) if single else kernel.reshape(kernel.shape[-2:])
    matrix = matrix if left or single else matrix.T
    outputs, inputs = matrix.shape
    last = -2 if left and size is not None and len(size) > 1 else -1
    if left and (size is None or not (len(size) == 1 or 1 in size[-1:])):
        raise _columns(activation, graph)
    if size is not None and (not size or [*size][last] not in (None, inputs)):
        raise _misfit(matrix, activation, graph)
    return Product(
        Linear(inputs, outputs, data_type=operands.data_type),
        np.ascontiguousarray(matrix),
        np.zeros(outputs),
        activation,
        node.outputs[0],
        output_rank=rank,
        channel_axis=None if single else last,
        rows=graph.rows(activation, slice(last)),
    )


def _constant_is_left(node: Node, graph: Graph) -> bool:
    return node.inputs[0] in graph.constants


def _residual(node: Node, graph: Graph) -> str:
    added = node.input(2)
    fits = added and added not in graph.constants and graph.same_shape(node.outputs[0], added)
    return added if fits and node.floats.get("beta", BETA) == 1 else ""


def _gemm_bias(operands: Operands, outputs: int, left: bool) -> Doubles:
    """Biases [K] of a C that has one value per output channel, or one for all. Raises as gemm does."""
    if operands.bias is None:
        return np.zeros(outputs)
    shape = operands.bias.shape
    same_in_all_rows = ((), (1,), (1, 1), *([(outputs, 1)] if left else [(outputs,), (1, outputs)]))
    if shape in same_in_all_rows:
        return np.broadcast_to(operands.bias.astype(np.float64).ravel(), outputs)
    if not left and len(shape) == 2 and shape[1] in (1, outputs):
        raise UnsupportedError(
            "biases differ by row",
            f"its biases of the shape {list(shape)} differ from row to row; only one row is compiled",
        )
    raise CheckpointError(
        f"its biases of the shape {list(shape)} do not fit {outputs} output channels: export the model again"
    )


def _columns(activation: str, graph: Graph) -> UnsupportedError:
    return UnsupportedError(
        "weights times columns",
        f"its input {in_words(graph.size(activation))} is multiplied by columns; only rows, or one column, are "
        "compiled: export it as x * W",
    )


def _misfit(kernel: FloatArray, activation: str, graph: Graph) -> CheckpointError:
    return CheckpointError(
        f"its weights of the shape {list(kernel.shape)} do not fit an input of the shape "
        f"{in_words(graph.size(activation))}: export the model again"
    )
