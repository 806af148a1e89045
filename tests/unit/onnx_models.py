"""ONNX models for tests, and comparisons of layers with onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import AddResidual, Clip, ConvTranspose2d, LeakyRelu, Linear
from codegen.verification.activations import function_of

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
    """A model of these nodes, by default with one input x [N, 3, 8, 8]."""
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


def node(operator: str, inputs: str, output: str, name: str = "", **attributes: Any) -> onnx.NodeProto:
    """A node whose inputs are the words of a string, as in "x w b"."""
    return helper.make_node(operator, inputs.split(" "), output.split(" "), name, **attributes)


def constants(**arrays: Any) -> list[onnx.TensorProto]:
    """Initializers by name; plain numbers become float32."""
    return [
        tensor(name, array if isinstance(array, np.ndarray) else np.float32(array)) for name, array in arrays.items()
    ]


def layer_of(folder: Path, proto: onnx.ModelProto) -> Layer:
    """The only layer of a model."""
    (layer,) = read_checkpoint(save(folder, proto)).layers
    return layer


def tensors_of(proto: onnx.ModelProto, names: Sequence[str], **inputs: NDArray[Any]) -> list[NDArray[np.float32]]:
    """Tensors of the model as onnxruntime computes them without optimisations."""
    import onnxruntime

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    copy.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    outputs: list[NDArray[np.float32]] = onnxruntime.InferenceSession(copy.SerializeToString(), options).run(
        None, inputs
    )
    return outputs


def assert_layer_computes_its_output(layer: Layer, proto: onnx.ModelProto, **inputs: NDArray[Any]) -> None:
    """Compares the layer's reference output with onnxruntime's output of the whole model."""
    shown = [layer.output, *filter(None, [layer.residual])]
    expected, *residual = tensors_of(proto, shown, **inputs)
    x = inputs[layer.input].astype(np.float64)
    actual = _sums(layer, x).reshape(expected.shape)
    for step in layer.spec.epilogue:
        if isinstance(step, Clip):
            actual = actual.clip(step.low, step.high) if (step.low, step.high) != (None, None) else actual
        elif isinstance(step, LeakyRelu):
            actual = np.where(actual < 0, actual * step.slope, actual)
        elif isinstance(step, AddResidual):
            actual = actual + residual[0]
        else:
            actual = function_of(step).compute(actual)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def _sums(layer: Layer, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of a layer before its epilogue, [N, K, H', W'] or [rows, K]."""
    spec, kernel, bias = layer.spec, layer.weights.kernel.astype(np.float64), layer.weights.bias.astype(np.float64)
    if isinstance(spec, Linear):
        return x.reshape(-1, spec.inputs) @ kernel.T + bias
    images, (top, left, bottom, right) = len(x), spec.padding
    channels, kernels = spec.channels // spec.groups, spec.output_channels // spec.groups
    x = x.reshape(images, spec.groups, channels, spec.height, spec.width)
    kernel = kernel.reshape(spec.groups, kernels, channels, spec.kernel_height, spec.kernel_width)
    height, width = spec.output_height, spec.output_width
    transposed = isinstance(spec, ConvTranspose2d)
    if transposed:
        output = np.zeros((images, spec.groups, kernels, height + top + bottom, width + left + right))
    else:
        output = np.zeros((images, spec.groups, kernels, height, width))
        x = np.pad(x, [(0, 0)] * 3 + [(top, bottom), (left, right)])
    for r in range(spec.kernel_height):
        for s in range(spec.kernel_width):
            (stride_y, stride_x), (y, z) = spec.stride, (r * spec.dilation[0], s * spec.dilation[1])
            many = spec.height if transposed else height, spec.width if transposed else width
            window = np.s_[..., y : y + stride_y * many[0] : stride_y, z : z + stride_x * many[1] : stride_x]
            products = "ngchw,gkc->ngkhw", kernel[..., r, s]
            if transposed:
                output[window] += np.einsum(products[0], x, products[1])
            else:
                output += np.einsum(products[0], x[window][..., : many[0], : many[1]], products[1])
    if transposed:
        output = output[..., top : top + height, left : left + width]
    return output.reshape(images, spec.output_channels, height, width) + bias[:, None, None]


def pruned(*shape: int, seed: int) -> NDArray[np.float32]:
    """Random weights, two thirds of them zero."""
    array = values(*shape, seed=seed)
    return np.where(np.abs(array) > 1, array, 0).astype(np.float32)


def branched_network(folder: Path) -> Path:
    """Two convolutions, one with a residual, a concatenation, a pool and a classifier; x is [N, 4, 8, 8], y [N, 10]."""
    nodes = [
        node("Conv", "x w1 b1", "a", "conv1", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b w2", "c", "conv2", pads=[1, 1, 1, 1]),
        node("Add", "c x", "d"),
        node("Concat", "d b", "e", axis=1),
        node("MaxPool", "e", "f", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "f", "g"),
        node("Gemm", "g w3 b3", "h", "fc", transB=1),
        node("Softmax", "h", "y", "softmax"),
    ]
    weights = {"w1": pruned(4, 4, 3, 3, seed=1), "b1": values(4), "w2": pruned(4, 4, 3, 3, seed=2)}
    weights |= {"w3": pruned(10, 8 * 4 * 4, seed=3) / 4, "b3": values(10, seed=4)}
    tensors = [tensor(name, array) for name, array in weights.items()]
    return save(folder, model(nodes, tensors, inputs=[info("x", ("N", 4, 8, 8))]))


def squeeze_and_excitation(folder: Path) -> Path:
    """x [N, 8, 6, 6], a depthwise kernel, a gate from its mean, a projection, a residual; then the mean again."""
    names = "depthwise", "squeeze", "excite", "project"
    shapes = (8, 1, 3, 3), (4, 8, 1, 1), (8, 4, 1, 1), (8, 8, 1, 1)
    nodes = [
        node("Conv", "x depthwise", "d", "depthwise", group=8, pads=[1, 1, 1, 1]),
        node("HardSwish", "d", "h"),
        node("GlobalAveragePool", "h", "mean"),
        node("Conv", "mean squeeze", "s", "squeeze"),
        node("Relu", "s", "t"),
        node("Conv", "t excite", "u", "excite"),
        node("HardSigmoid", "u", "gates", alpha=1 / 6, beta=0.5),
        node("Mul", "h gates", "gated", "gate"),
        node("Conv", "gated project", "p", "project"),
        node("Add", "p x", "sum"),
        node("GlobalAveragePool", "sum", "y"),
    ]
    weights = {name: values(*shape, seed=i) for i, (name, shape) in enumerate(zip(names, shapes, strict=True))}
    proto = model(nodes, constants(**weights), inputs=[info("x", ("N", 8, 6, 6))])
    return save(folder, proto)


def sequence_network(folder: Path) -> Path:
    """x [N, 4, 8, 8]: mirrored padding, a convolution, shuffled channels, places added, an LSTM over the rows, a Gemm.

    As exporters write it: sizes are computed from Shape, places by Range.
    """
    integers = {"i0": 0, "i1": 1, "zero": 0, "one": 1, "two": 2, "axis": [0], "groups": [2], "last": [-1]}
    nodes = [
        *[node("Pad", "x pads", "padded", mode="reflect"), node("Conv", "padded w", "c", "conv")],
        *[node("Shape", "c", "s"), node("Gather", "s i0", "n"), node("Gather", "s i1", "k"), node("Div", "k two", "h")],
        *[node("Unsqueeze", "n axis", "n1"), node("Unsqueeze", "h axis", "h1"), node("Unsqueeze", "k axis", "k1")],
        *[node("Concat", "n1 groups h1 last", "sizes", axis=0), node("Reshape", "c sizes", "grouped")],
        node("Transpose", "grouped", "turned", perm=[0, 2, 1, 3]),
        *[node("Concat", "n1 k1 last", "back", axis=0), node("Reshape", "turned back", "shuffled")],
        *[node("Range", "zero k one", "range"), node("Cast", "range", "f", to=FLOAT), node("Unsqueeze", "f last", "p")],
        *[node("Add", "shuffled p", "placed"), node("Transpose", "placed", "steps", perm=[1, 0, 2])],
        node("LSTM", "steps lw lr lb", "all end", hidden_size=5, direction="bidirectional"),
    ]
    nodes += [node("Transpose", "end", "by_image", perm=[1, 0, 2]), node("Flatten", "by_image", "flat")]
    nodes.append(node("Gemm", "flat g", "y", "fc"))
    weights = {"w": values(8, 4, 3, 3), "lw": values(2, 20, 64), "lr": values(2, 20, 5), "lb": values(2, 40)}
    arrays = {name: np.array(each, np.int64) for name, each in integers.items()}
    arrays["pads"] = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    given = {name: array / np.float32(4) for name, array in weights.items()} | {"g": values(10, 6)} | arrays
    return save(folder, model(nodes, constants(**given), inputs=[info("x", ("N", 4, 8, 8))]))
