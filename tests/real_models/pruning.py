"""Pruning of the weights in an ONNX model, in the ways that people prune networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from codegen.model_zoo.pruning import prune

LAYERS = {"Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger"}
BETWEEN = {"DequantizeLinear", "Identity"}
"""Operators between a layer and its weights. Integers have the zero point 0 in the models that we prune."""

Kernels = Sequence[NDArray[np.float32]]


def _each_layer(kernels: Kernels) -> Kernels:
    return [prune(each, 0.9) for each in kernels]


def _global_threshold(kernels: Kernels) -> Kernels:
    together = prune(np.concatenate([each.ravel() for each in kernels]), 0.9)
    parts = np.split(together, np.cumsum([each.size for each in kernels])[:-1])
    return [part.reshape(each.shape) for part, each in zip(parts, kernels, strict=True)]


def _dense_ends(kernels: Kernels) -> Kernels:
    return [kernels[0], *(prune(each, 0.95) for each in kernels[1:-1]), kernels[-1]]


WAYS: dict[str, Callable[[Kernels], Kernels]] = {
    "0.9 in each layer": _each_layer,
    "0.9 by one threshold": _global_threshold,
    "0.95 between dense ends": _dense_ends,
}


def prune_model(model: onnx.ModelProto, way: str) -> None:
    """Sets weights of the model's layers to zero, the smallest first."""
    constants = {each.name: each for each in _constants(model.graph)}
    names = dict.fromkeys(name for name in _weights(model.graph) if name in constants)
    tensors = [constants[name] for name in names if len(constants[name].dims) > 1]
    kernels = [numpy_helper.to_array(each).astype(np.float32) for each in tensors]
    for tensor, kept in zip(tensors, WAYS[way](kernels), strict=True):
        dtype = numpy_helper.to_array(tensor).dtype
        tensor.CopyFrom(numpy_helper.from_array(kept.astype(dtype), tensor.name))


def _weights(graph: onnx.GraphProto) -> Iterator[str]:
    sources = {node.output[0]: node.input[0] for node in graph.node if node.op_type in BETWEEN}
    for node in graph.node:
        if node.op_type in LAYERS:
            for name in node.input[:2]:
                while name in sources:
                    name = sources[name]
                yield name
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _weights(attribute.g)


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Initializers, and the values of Constant nodes under the names of their outputs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _constants(attribute.g)
            if node.op_type == "Constant" and attribute.HasField("t"):
                attribute.t.name = node.output[0]
                yield attribute.t
