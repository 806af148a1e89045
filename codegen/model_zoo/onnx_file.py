"""Conversion of a network to float16, and its ONNX file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


def write_network(path: Path | str, model: ModelProto) -> None:
    """Writes an ONNX file atomically."""
    path = Path(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(model.SerializeToString(deterministic=True))
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def in_float16(model: ModelProto) -> ModelProto:
    """Converts weights, constants, inputs and outputs to float16, in place; returns the model."""
    from onnx import TensorProto

    graph = model.graph
    tensors = [*graph.initializer]
    tensors += [attribute.t for node in graph.node if node.op_type == "Constant" for attribute in node.attribute]
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(_halved(tensor))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def _halved(tensor: TensorProto) -> TensorProto:
    from onnx import numpy_helper

    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
