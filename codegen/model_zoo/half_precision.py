"""A network in half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


def in_float16(model: ModelProto) -> ModelProto:
    """The same network with weights, constants, inputs and outputs of float16; the model itself is changed."""
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
