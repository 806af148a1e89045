"""ONNX models for tests, with everything about one convolution open to change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

FLOAT = onnx.TensorProto.FLOAT
Shape = Sequence[int | str] | None


def values(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def tensor(name: str, array: NDArray[Any]) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def info(name: str, shape: Shape, element_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type, shape)


def conv(
    name: str = "conv", inputs: Sequence[str] = ("x", "w"), output: str = "y", **attributes: Any
) -> onnx.NodeProto:
    return helper.make_node("Conv", list(inputs), [output], name, **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    tensors: Sequence[onnx.TensorProto] = (),
    *,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    output: str = "y",
    opset: int = 17,
    **graph_fields: Any,
) -> onnx.ModelProto:
    """By default with one input x [N, 3, 8, 8]."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        list(inputs or [info("x", ["N", 3, 8, 8])]),
        [info(output, None)],
        list(tensors),
        **graph_fields,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def conv_model(
    weights: NDArray[Any] | None = None, *, input_shape: Shape = ("N", 3, 8, 8), **attributes: Any
) -> onnx.ModelProto:
    """One convolution of x with 4 kernels 3x3, or with the weights given."""
    kernel = values(4, 3, 3, 3) if weights is None else weights
    element_type = helper.np_dtype_to_tensor_dtype(kernel.dtype)
    return model([conv(**attributes)], [tensor("w", kernel)], inputs=[info("x", input_shape, element_type)])


def save(folder: Path, proto: onnx.ModelProto, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path
