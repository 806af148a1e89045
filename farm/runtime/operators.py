"""ONNX operators lowered to launches of the kernels in glue.cu: the operators between the compiled layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.export.network import NetworkNode
from codegen.ir.launch import GridSize
from farm.runtime.data_movement import DATA_MOVEMENT, numbers_of, scalar_of, strides_of
from farm.runtime.lowering import ROW_THREADS, TILE, Given, Lowering, Operator, Value, attribute_axes
from farm.runtime.max_pools import FastMaxPool
from farm.runtime.plan import Rows

ERF_GELU, TANH_GELU, SQUARE_ROOT, QUANTIZED = 8, 9, 12, 15
"""Numbers of glue.cu's unary operations."""
MULTIPLY = 2
"""Number of glue.cu's multiplication of two tensors."""
SQUARE, ROOT = 2.0, 0.5
"""Exponents that are computed."""


def _same(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    return [lowering.values[node.inputs[0]]]


def _cast(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    from_onnx = {1: "float32", 10: "float16", 16: "bfloat16"}
    x = lowering.values[node.inputs[0]]
    if from_onnx.get(node.attributes["to"]) != x.dtype:
        raise lowering.refused(node, f"from {x.dtype} to another type")
    return [x]


def _unary(code: int, lowering: Lowering, node: NetworkNode, a: float = 0.0, b: float = 0.0) -> Sequence[Value]:
    return _each_element(code, lowering, node, lowering.values[node.inputs[0]], a, b)


def _each_element(code: int, lowering: Lowering, node: NetworkNode, x: Value, a: float, b: float) -> Sequence[Value]:
    count = prod(lowering.inner(node, x))
    blocks, grid = lowering.elementwise(count)
    output = lowering.new(x.shape, x.dtype)
    return [lowering.step(node, "unary", [x, output, blocks, count, code, float(a), float(b)], output, grid)]


def _relu(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    return _unary(0, lowering, node, 0.0, math.inf)


def _clip(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    low = scalar_of(lowering, node, 1, node.attributes.get("min", -math.inf))
    return _unary(0, lowering, node, low, scalar_of(lowering, node, 2, node.attributes.get("max", math.inf)))


def _with_attributes(
    code: int, first: tuple[str, float], second: tuple[str, float], lowering: Lowering, node: NetworkNode
) -> Sequence[Value]:
    """An activation with up to two attributes."""
    a, b = (node.attributes.get(name, default) for name, default in (first, second))
    return _unary(code, lowering, node, a, b)


def _gelu(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    return _unary(TANH_GELU if node.attributes.get("approximate", "none") == "tanh" else ERF_GELU, lowering, node)


def _quantize(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    """Gives x a type that only a DequantizeLinear with equal parameters takes; its launch computes both nodes."""
    x = lowering.values[node.inputs[0]]
    return [Value(x.shape, _quantized_type(x.dtype, *_quantized_by(lowering, node)), x.root, x.constant)]


def _dequantize(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    dtype = lowering.values[node.inputs[1]].dtype
    scale, low = _quantized_by(lowering, node)
    if x.dtype != _quantized_type(dtype, scale, low):
        raise lowering.refused(node, "of a tensor that was quantized otherwise")
    return _each_element(QUANTIZED, lowering, node, Value(x.shape, dtype, x.root, x.constant), scale, low)


def _quantized_by(lowering: Lowering, node: NetworkNode) -> tuple[float, int]:
    """The scale, and the least integer less the zero point."""
    zero = lowering.values[node.inputs[2]].constant if node.inputs[2:] else np.zeros(1, np.uint8)
    if zero is None or zero.size != 1 or zero.dtype.name not in ("int8", "uint8"):
        raise lowering.refused(node, "with zero points of 8 bits for each channel, or of another type")
    return scalar_of(lowering, node, 1, 0.0), int(np.iinfo(zero.dtype).min) - int(zero.item())


def _quantized_type(dtype: str, scale: float, low: int) -> str:
    return f"{dtype} quantized by {scale} from {low}"


def _binary(code: int, lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    """An operation on two tensors, or on several, from left to right."""
    result = lowering.values[node.inputs[0]]
    for name in node.inputs[1:]:
        result = _pair(code, lowering, node, result, lowering.values[name])
    return [result]


def _power(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    """Squares and square roots, as exporters write them in normalizations."""
    exponent = scalar_of(lowering, node, 1, 1.0)
    if exponent == SQUARE:
        x = lowering.values[node.inputs[0]]
        return [_pair(MULTIPLY, lowering, node, x, x)]
    if exponent == ROOT:
        return _unary(SQUARE_ROOT, lowering, node)
    raise lowering.refused(node, f"to the power of {exponent:g}")


def _pair(code: int, lowering: Lowering, node: NetworkNode, a: Value, b: Value) -> Value:
    computed = a if a.constant is None else b
    if computed.constant is not None or (a.constant is None and b.constant is None and a.dtype != b.dtype):
        raise lowering.refused(node, "of constants, or of two types")
    shape = np.broadcast_shapes(a.shape, b.shape)
    if len(computed.shape) != len(shape) or shape[0] != computed.shape[0]:
        raise lowering.refused(node, f"of {list(a.shape)} and {list(b.shape)}")
    sizes = lowering.inner(node, computed.shaped(shape))
    if len(sizes) > 4:
        raise lowering.refused(node, f"of {len(shape)} dimensions")
    output = lowering.new(shape, computed.dtype)
    blocks, grid = lowering.elementwise(prod(sizes))
    padded = [1] * (4 - len(sizes)) + list(sizes)
    operands = [lowering.floats(each.constant, output.dtype) if each.constant is not None else each for each in (a, b)]
    strides = [n for each in operands for n in _broadcast(lowering, node, each, shape, sizes)]
    arguments: list[Given] = [*operands, output, blocks, prod(sizes), *padded[1:], *strides, code]
    return lowering.step(node, "binary", arguments, output, grid)


def _broadcast(
    lowering: Lowering, node: NetworkNode, value: Value, shape: Sequence[int], sizes: Sequence[int]
) -> list[int]:
    """The stride between images and those of an image's four sizes; 0 for a size that is broadcast."""
    own = [1] * (len(shape) - len(value.shape)) + list(value.shape)
    if value.constant is not None and own[0] != 1:
        raise lowering.refused(node, "of a constant for each image")
    if value.constant is None and (len(value.shape) != len(shape) or own[0] != shape[0]):
        raise lowering.refused(node, f"of {list(value.shape)} for {list(shape)}")
    inner = own[1:]
    if len(sizes) == len(shape):  # rows of all images come first
        inner = [1 if value.constant is not None else sizes[0], *inner]
    strides = [0 if size == 1 else stride for size, stride in zip(inner, strides_of(inner), strict=True)]
    of_image = 0 if value.constant is not None else value.size // lowering.images
    return [of_image, *[0] * (4 - len(strides)), *strides]


def _window(
    lowering: Lowering, node: NetworkNode, size: tuple[int, ...]
) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    """Extent, strides, dilations, padding before and after, and the output's sizes; a 1-d input has height 1."""
    attributes = node.attributes
    rank = len(size)
    extent = list(attributes["kernel_shape"])
    strides = list(attributes.get("strides") or [1] * rank)
    dilations = list(attributes.get("dilations") or [1] * rank)
    pads = list(attributes.get("pads") or [0] * 2 * rank)
    begins, ends = pads[:rank], pads[rank:]
    auto = attributes.get("auto_pad", "NOTSET")
    outputs = []
    for i in range(rank):
        reach = (extent[i] - 1) * dilations[i] + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            outputs.append(-(-size[i] // strides[i]))
            total = max(0, (outputs[i] - 1) * strides[i] + reach - size[i])
            begins[i] = total // 2 if auto == "SAME_UPPER" else total - total // 2
            ends[i] = total - begins[i]
            continue
        span = size[i] + begins[i] + ends[i] - reach
        if span < 0:
            raise lowering.refused(node, "its window is larger than the image")
        steps = -(-span // strides[i]) if attributes.get("ceil_mode", 0) else span // strides[i]
        if steps * strides[i] >= size[i] + begins[i]:  # no window begins after the image
            steps -= 1
        outputs.append(steps + 1)
    alone = [extent, strides, dilations, begins, ends, outputs]
    if rank == 1:
        filling = [1, 1, 1, 0, 0, 1]
        alone = [[fill, *each] for fill, each in zip(filling, alone, strict=True)]
    return alone[0], alone[1], alone[2], alone[3], alone[4], alone[5]


def _pool(kernel: str, lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    rank = len(x.shape) - 2
    if rank not in (1, 2) or x.shape[0] != lowering.images or any(node.outputs[1:]):
        raise lowering.refused(node, f"of {len(x.shape)} dimensions, or with several outputs")
    if kernel == "max_pool" and node.attributes.get("storage_order", 0):
        raise lowering.refused(node, "with another order of storage")
    height, width = (1, *x.shape[2:])[-2:]
    extent, strides, dilations, begins, ends, sizes = _window(lowering, node, x.shape[2:])
    channels = x.shape[1]
    output = lowering.new((x.shape[0], channels, *sizes[2 - rank :]), x.dtype)
    fast = FastMaxPool.of((height, width), sizes, extent, strides, dilations, begins)
    if kernel == "max_pool" and fast is not None:
        return [_fast_max_pool(lowering, node, x, output, fast)]
    blocks, grid = lowering.elementwise(channels * prod(sizes))
    arguments: list[Given] = [x, output, blocks, channels, height, width, *sizes, *extent, *strides, *begins, *ends]
    arguments += [*dilations, int(node.attributes.get("count_include_pad", 0))]
    return [lowering.step(node, kernel, arguments, output, grid)]


def _fast_max_pool(lowering: Lowering, node: NetworkNode, x: Value, output: Value, fast: FastMaxPool) -> Value:
    channels = x.shape[1]
    count = fast.threads(channels)
    blocks, grid = lowering.elementwise(count)
    sizes = [fast.height, fast.fours, fast.out_height, fast.top, prod(x.shape[1:])]
    return lowering.step(node, fast.kernel, [x, output, blocks, count, *sizes], output, grid)


def _global_max(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    attributes = {"kernel_shape": list(x.shape[2:])}
    whole = NetworkNode("MaxPool", node.name, node.inputs, node.outputs, attributes)
    return _pool("max_pool", lowering, whole)


def _mean(lowering: Lowering, node: NetworkNode, x: Value, first: int, shape: Sequence[int]) -> Value:
    """The mean over all axes from `first` on."""
    lowering.axis(node, x, first)
    length, rows = prod(x.shape[first:]), prod(x.shape[1:first])
    output = lowering.new(shape, x.dtype)
    grid = GridSize(rows, 1), GridSize(), GridSize()
    return lowering.step(node, "mean", [x, output, length], output, grid, threads=ROW_THREADS)


def _global_average(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    return [_mean(lowering, node, x, 2, [*x.shape[:2], *[1] * (len(x.shape) - 2)])]


def _reduce_mean(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    given = [None, np.array(numbers_of(lowering, node, 1))] if len(node.inputs) > 1 else [None]
    axes = sorted(lowering.axis(node, x, axis) for axis in attribute_axes(node, given))
    if not axes or axes != list(range(axes[0], len(x.shape))):
        raise lowering.refused(node, "over sizes that are not the last ones")
    kept = [1] * len(axes) if node.attributes.get("keepdims", 1) else []
    return [_mean(lowering, node, x, axes[0], [*x.shape[: axes[0]], *kept])]


def _softmax(logarithm: int, lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    new = lowering.opset >= 13
    axis = lowering.axis(node, x, int(node.attributes.get("axis", -1 if new else 1)))
    length = x.shape[axis] if new else prod(x.shape[axis:])  # before opset 13: over all following axes
    stride = prod(x.shape[axis + 1 :]) if new else 1
    output = lowering.new(x.shape, x.dtype)
    grid = GridSize(prod(x.shape[1:]) // length, 1), GridSize(), GridSize()
    arguments: list[Given] = [x, output, length, stride, logarithm]
    return [lowering.step(node, "softmax", arguments, output, grid, threads=ROW_THREADS)]


def _dense(
    lowering: Lowering,
    node: NetworkNode,
    x: Value,
    weights: NDArray[Any],
    bias: NDArray[Any] | None = None,
    *,
    transposed: bool = False,
) -> Value:
    """Rows times weights of [inputs, outputs], or of [outputs, inputs] if transposed, plus a bias.

    The weights keep the model's layout, so that network.onnx can point at them.
    """
    inputs, outputs = weights.shape[::-1] if transposed else weights.shape
    if x.constant is not None or x.shape[-1] != inputs:
        raise lowering.refused(node, f"of {list(x.shape)} and {list(weights.shape)}")
    rows = prod((*lowering.inner(node, x), 1)) // inputs
    output = lowering.new((*x.shape[:-1], outputs), x.dtype)
    of_weights = lowering.floats(weights, x.dtype)
    of_bias = of_weights if bias is None else lowering.floats(np.broadcast_to(bias, (outputs,)), x.dtype)
    grid = GridSize(-(-outputs // TILE)), GridSize(1, TILE), GridSize()
    arguments: list[Given] = [x, of_weights, of_bias, output, Rows(), inputs, outputs]
    arguments += [int(transposed), int(bias is not None)]
    return lowering.step(node, "gemm", arguments, output, grid, rows=rows)


def _constant(lowering: Lowering, node: NetworkNode, position: int) -> NDArray[Any]:
    constant = lowering.values[node.inputs[position]].constant
    if constant is None:
        raise lowering.refused(node, f"its input {node.inputs[position]} is not a constant")
    return np.asarray(constant, np.float32)


def _gemm(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    attributes = node.attributes
    x = lowering.values[node.inputs[0]]
    if attributes.get("transA", 0):
        raise lowering.refused(node, "with transA")
    weights = _constant(lowering, node, 1)
    if attributes.get("alpha", 1.0) != 1.0:
        weights = weights * np.float32(attributes["alpha"])
    transposed = bool(attributes.get("transB", 0))
    bias = None
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = _constant(lowering, node, 2) * np.float32(attributes.get("beta", 1.0))
        bias = bias.reshape(-1) if bias.size in (1, weights.shape[0 if transposed else 1]) else None
        if bias is None:
            raise lowering.refused(node, "with a bias for each row")
    return [_dense(lowering, node, x, weights, bias, transposed=transposed)]


def _matmul(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    weights = _constant(lowering, node, 1)
    if weights.ndim != 2:
        raise lowering.refused(node, f"by constants of {list(weights.shape)}")
    return [_dense(lowering, node, lowering.values[node.inputs[0]], weights)]


def _batch_norm(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    """x times a factor of each channel, plus a shift."""
    x = lowering.values[node.inputs[0]]
    scale, shift, mean, variance = (_constant(lowering, node, i).astype(np.float64) for i in range(1, 5))
    with np.errstate(invalid="ignore", divide="ignore"):  # a variance below zero gives NaN, as in onnxruntime
        factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    shape = (-1, *[1] * (len(x.shape) - 2))
    result = x
    for code, numbers in ((MULTIPLY, factor), (0, shift - mean * factor)):
        constant = lowering.floats(numbers.reshape(shape).astype(np.float32), x.dtype)
        result = _pair(code, lowering, node, result, constant)
    return [result]


OPERATORS: dict[str, Operator] = {
    **DATA_MOVEMENT,
    **dict.fromkeys(("Identity", "Dropout"), _same),
    "Cast": _cast,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Relu": _relu,
    "Clip": _clip,
    "LeakyRelu": partial(_with_attributes, 1, ("alpha", 0.01), ("", 0.0)),
    "Elu": partial(_with_attributes, 2, ("alpha", 1.0), ("", 0.0)),
    "Sigmoid": partial(_unary, 3),
    "Tanh": partial(_unary, 4),
    "HardSigmoid": partial(_with_attributes, 5, ("alpha", 0.2), ("beta", 0.5)),
    "HardSwish": partial(_unary, 6),
    "Swish": partial(_with_attributes, 7, ("alpha", 1.0), ("", 0.0)),
    "Gelu": _gelu,
    "Mish": partial(_unary, 10),
    "Exp": partial(_unary, 11),
    "Pow": _power,
    "Sqrt": partial(_unary, SQUARE_ROOT),
    "Abs": partial(_unary, 13),
    "Neg": partial(_unary, 14),
    "Add": partial(_binary, 0),
    "Sum": partial(_binary, 0),
    "Sub": partial(_binary, 1),
    "Mul": partial(_binary, MULTIPLY),
    "Div": partial(_binary, 3),
    "Max": partial(_binary, 4),
    "Min": partial(_binary, 5),
    "MaxPool": partial(_pool, "max_pool"),
    "AveragePool": partial(_pool, "average_pool"),
    "GlobalMaxPool": _global_max,
    "GlobalAveragePool": _global_average,
    "ReduceMean": _reduce_mean,
    "Softmax": partial(_softmax, 0),
    "LogSoftmax": partial(_softmax, 1),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "BatchNormalization": _batch_norm,
}
"""Operators that the runtime runs between the compiled layers."""
