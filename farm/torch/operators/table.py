"""ONNX operators in PyTorch, for the glue of a network around its compiled layers.

Each function takes a node's inputs, None for an omitted one, and its attributes by name. Every call has `opset` and
`outputs`, the number of the node's outputs, too, and of those in MAKERS `beside`, a tensor on the result's device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from farm.errors import UsageError
from farm.torch.operators import shaping
from farm.torch.operators.attention import attention
from farm.torch.operators.recurrent import gru, lstm
from farm.torch.operators.shaping import Numbers
from farm.torch.operators.windows import average_pool, convolution, max_pool, transposed_convolution

T: TypeAlias = torch.Tensor

PARAMETERS: dict[str, tuple[int, ...]] = {
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "Dropout": (1, 2),
    "Expand": (1,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "ReduceL2": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
}
"""Positions of inputs that are read on the CPU, if they are constants or follow from shapes, by operator."""


def _simple(function: Callable[..., T]) -> Callable[..., T]:
    """An operator without attributes."""

    def apply(*inputs: T, **_: Any) -> T:
        return function(*inputs)

    return apply


def _divide(x: T, y: T, **_: Any) -> T:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _fold(function: Callable[[T, T], T]) -> Callable[..., T]:
    """An operator that folds a binary function over any number of inputs."""

    def apply(first: T, *others: T, **_: Any) -> T:
        for other in others:
            first = function(first, other)
        return first

    return apply


def _clip(x: T, low: Any = None, high: Any = None, **attributes: Any) -> T:
    low = attributes.get("min") if low is None else low
    high = attributes.get("max") if high is None else high
    x = x if low is None else x.clamp(min=low)
    return x if high is None else x.clamp(max=high)


def _leaky_relu(x: T, alpha: float = 0.01, **_: Any) -> T:
    return functional.leaky_relu(x, alpha)


def _parametric_relu(x: T, slope: T, **_: Any) -> T:
    return torch.where(x < 0, x * slope, x)


def _elu(x: T, alpha: float = 1.0, **_: Any) -> T:
    return functional.elu(x, alpha)


def _hard_sigmoid(x: T, alpha: float = 0.2, beta: float = 0.5, **_: Any) -> T:
    return (alpha * x + beta).clamp(0, 1)


def _gelu(x: T, approximate: str = "none", **_: Any) -> T:
    return functional.gelu(x, approximate=approximate)


_TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}


def _cast(x: T, to: int, **_: Any) -> T:
    return x.to(_TYPES[to])


def _cast_like(x: T, like: T, **_: Any) -> T:
    return x.to(like.dtype)


def _quantize(x: T, scale: T, zero: T | None = None, axis: int = 1, **more: Any) -> T:
    scale, zero = _per_channel(x, axis, scale, x.new_zeros((), dtype=torch.uint8) if zero is None else zero, **more)
    if zero.dtype not in (torch.int8, torch.uint8):
        raise UsageError(f"farm.torch does not support QuantizeLinear to {zero.dtype}: use another runtime")
    bounds = torch.iinfo(zero.dtype)
    return ((x / scale).round() + zero).clamp(bounds.min, bounds.max).to(zero.dtype)


def _dynamic_quantize(x: T, **_: Any) -> list[T]:
    """Integers of 8 bits, and their scale and zero point by the range of the tensor, which includes zero."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = torch.where(high > low, (high - low) / 255, 1.0)
    zero = (-low / scale).round().clamp(0, 255).to(torch.uint8)
    return [_quantize(x, scale, zero), scale, zero]


def _dequantize(x: T, scale: T, zero: T | None = None, axis: int = 1, **more: Any) -> T:
    scale, zero = _per_channel(x, axis, scale, x.new_zeros(()) if zero is None else zero, **more)
    return (x.to(scale.dtype) - zero) * scale


def _per_channel(x: T, axis: int, *parameters: T, block_size: int = 0, **more: Any) -> list[T]:
    """Scale and zero point in the shape that broadcasts to x."""
    if more.get("output_dtype"):
        raise UsageError("farm.torch does not support QuantizeLinear with output_dtype: use another runtime")
    if block_size:
        return [each.repeat_interleave(block_size, axis) if each.ndim else each for each in parameters]
    shape = [1] * x.ndim
    return [each.reshape([*shape[:axis], -1, *shape[axis:][1:]]) if each.numel() > 1 else each for each in parameters]


def gemm(a: T, b: T, c: T | None = None, alpha: float = 1.0, beta: float = 1.0, **more: Any) -> T:
    """ONNX's Gemm."""
    if more.get("transB") and not more.get("transA") and alpha == beta == 1 and c is not None and c.ndim == 1:
        return functional.linear(a, b, c)
    product = (a.T if more.get("transA") else a) @ (b.T if more.get("transB") else b)
    product = product * alpha if alpha != 1 else product
    return product if c is None else product + (c * beta if beta != 1 else c)


def _batch_normalization(x: T, scale: T, bias: T, mean: T, variance: T, epsilon: float = 1e-5, **more: Any) -> T:
    if more.get("training_mode"):
        raise UsageError("farm.torch does not support BatchNormalization in training mode: export for inference")
    return functional.batch_norm(x, mean, variance, scale, bias, eps=epsilon)


def _instance_normalization(x: T, scale: T, bias: T, epsilon: float = 1e-5, **_: Any) -> T:
    return functional.instance_norm(x, weight=scale, bias=bias, eps=epsilon)


def _layer_normalization(x: T, scale: T, bias: T | None = None, axis: int = -1, epsilon: float = 1e-5, **_: Any) -> T:
    shape = x.shape[axis % x.ndim :]
    weight = scale.expand(shape)
    return functional.layer_norm(x, shape, weight, None if bias is None else bias.expand(shape), epsilon)


def _rms_normalization(x: T, scale: T, axis: int = -1, epsilon: float = 1e-5, **_: Any) -> T:
    shape = x.shape[axis % x.ndim :]
    return functional.rms_norm(x, shape, scale.expand(shape), epsilon)


def _triangle(x: T, diagonal: Any = 0, upper: int = 1, **_: Any) -> T:
    return (torch.triu if upper else torch.tril)(x, shaping.number(diagonal) or 0)


def _global_average(x: T, **_: Any) -> T:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


def _global_max(x: T, **_: Any) -> T:
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


def _reduce(function: Callable[[T, tuple[int, ...], bool], T]) -> Callable[..., T]:
    def apply(x: T, axes: Numbers = None, keepdims: int = 1, noop_with_empty_axes: int = 0, **_: Any) -> T:
        chosen = tuple(shaping.numbers(axes))
        if not chosen and noop_with_empty_axes:
            return x
        return function(x, chosen or tuple(range(x.ndim)), bool(keepdims))

    return apply


def _product(x: T, axes: tuple[int, ...], keep: bool) -> T:
    for axis in sorted((each % x.ndim for each in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _softmax(function: Callable[[T, int], T]) -> Callable[..., T]:
    def apply(x: T, axis: int | None = None, opset: int = 13, **_: Any) -> T:
        if opset >= 13:
            return function(x, -1 if axis is None else axis)
        flat = shaping.flatten(x, 1 if axis is None else axis)  # before opset 13, a row spans all later axes
        return function(flat, 1).reshape(x.shape)

    return apply


def _arg_max(x: T, axis: int = 0, keepdims: int = 1, select_last_index: int = 0, **_: Any) -> T:
    if select_last_index:
        return x.shape[axis] - 1 - x.flip(axis).argmax(axis, keepdim=bool(keepdims))
    return x.argmax(axis, keepdim=bool(keepdims))


def _local_response(x: T, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, **_: Any) -> T:
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = functional.pad((x * x).unsqueeze(1), (0, 0) * (x.ndim - 2) + (before, after))
    total = squares.unfold(2, size, 1).sum(-1).squeeze(1)
    return x / (bias + alpha / size * total) ** beta


def _where(condition: T, x: T, y: T, **_: Any) -> T:
    return torch.where(condition, x, y)


def _identity(x: T, *_: Any, **__: Any) -> T:
    return x


OPERATORS: dict[str, Callable[..., Any]] = {
    **{
        name: _simple(function)
        for name, function in {
            "Abs": torch.abs,
            "Add": torch.add,
            "And": torch.logical_and,
            "Ceil": torch.ceil,
            "Cos": torch.cos,
            "Equal": torch.eq,
            "Erf": torch.erf,
            "Exp": torch.exp,
            "Floor": torch.floor,
            "Greater": torch.gt,
            "GreaterOrEqual": torch.ge,
            "HardSwish": functional.hardswish,
            "Less": torch.lt,
            "LessOrEqual": torch.le,
            "Log": torch.log,
            "MatMul": torch.matmul,
            "Mish": functional.mish,
            "Mul": torch.mul,
            "Neg": torch.neg,
            "Not": torch.logical_not,
            "Or": torch.logical_or,
            "Pow": torch.pow,
            "Reciprocal": torch.reciprocal,
            "Relu": torch.relu,
            "Round": torch.round,
            "Sigmoid": torch.sigmoid,
            "Sign": torch.sign,
            "Sin": torch.sin,
            "Softplus": functional.softplus,
            "Softsign": functional.softsign,
            "Sqrt": torch.sqrt,
            "Sub": torch.sub,
            "Tanh": torch.tanh,
        }.items()
    },
    "ArgMax": _arg_max,
    "Attention": attention,
    "AveragePool": average_pool,
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Concat": shaping.concat,
    "ConstantOfShape": shaping.constant_of_shape,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "DequantizeLinear": _dequantize,
    "DepthToSpace": shaping.depth_to_space,
    "Div": _divide,
    "Dropout": _identity,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Elu": _elu,
    "Expand": shaping.expand,
    "Flatten": shaping.flatten,
    "GRU": gru,
    "Gather": shaping.gather,
    "GatherElements": shaping.gather_elements,
    "Gelu": _gelu,
    "Gemm": gemm,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "HardSigmoid": _hard_sigmoid,
    "Identity": _identity,
    "InstanceNormalization": _instance_normalization,
    "LRN": _local_response,
    "LSTM": lstm,
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _softmax(torch.log_softmax),
    "Max": _fold(torch.maximum),
    "MaxPool": max_pool,
    "Min": _fold(torch.minimum),
    "PRelu": _parametric_relu,
    "Pad": shaping.pad,
    "QuantizeLinear": _quantize,
    "RMSNormalization": _rms_normalization,
    "Range": shaping.range_of,
    "ReduceL2": _reduce(lambda x, axes, keep: torch.linalg.vector_norm(x, dim=axes, keepdim=keep)),
    "ReduceMax": _reduce(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMean": _reduce(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "ReduceMin": _reduce(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "ReduceProd": _reduce(_product),
    "ReduceSum": _reduce(lambda x, axes, keep: x.sum(axes, keepdim=keep)),
    "Reshape": shaping.reshape,
    "Resize": shaping.resize,
    "ScatterElements": shaping.scatter_elements,
    "Shape": shaping.shape,
    "Size": shaping.size,
    "Slice": shaping.slice_of,
    "Softmax": _softmax(torch.softmax),
    "SpaceToDepth": shaping.space_to_depth,
    "Split": shaping.split,
    "Squeeze": shaping.squeeze,
    "Sum": _fold(torch.add),
    "Tile": shaping.tile,
    "Transpose": shaping.transpose,
    "Trilu": _triangle,
    "Unsqueeze": shaping.unsqueeze,
    "Where": _where,
}
