"""ONNX graphs in float64, each tensor with how far arithmetic that rounds may be from it.

Shares nothing with `codegen.verification.reference`: a third opinion, from the text of ONNX's operators. It knows the
nodes that drawn layers have, on inputs that are finite.

Two programs are bounded. One runs node after node as onnxruntime's CPU provider does: in float32, each result rounded
to the tensor's type. The other folds what follows a product into the product's weights, as `read_checkpoint` does, and
then computes with those; `folding` is about the weights alone.

- A sum of n products, in any order, fused or not: ((1 + u)^(n + 2) - 1) |w| * |x|, u = 2^-24 (Higham, Accuracy and
  Stability of Numerical Algorithms, section 3.1), and half a subnormal for each product that underflows.
- Each later node adds the rounding of its own results to what it makes of the error before it.
- A folded node changes each weight by u of the weights' type, or by half a subnormal: u |w| * |x| and half a subnormal
  times the sum of the |x| that have a weight, and the bias alike. A node before the product, with an input and a gate,
  may do that to each element of the input instead: then half a subnormal times the sum of the |w| too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.differential.window import Attributes, Float64Array, Window

Product = Callable[[Float64Array, Float64Array], Float64Array]

SINGLE = ml_dtypes.finfo(np.float32)
UNIT_ROUNDOFF = 2.0**-24
FUNCTION_ROUNDINGS = 16
"""Roundings of 1, and of the result, by which onnxruntime's sigmoid, hyperbolic tangent and error function may be off:
they are quotients of polynomials in float32."""
BATCH_NORM_ROUNDINGS = 12
"""Roundings of variance + epsilon, root, quotient, times scale, times x; of mean times all that; and of two sums."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """The values of a tensor and their error bounds; arrays of one shape."""

    value: Float64Array
    error: Float64Array
    """Error bound for a program that runs node after node."""
    magnitude: Float64Array
    """Sums of the absolute values of all that was added up."""
    reach: Float64Array
    """Sums of the |x| that have a weight."""
    folds: int
    """Nodes since the product that change its weights."""
    dtype: np.dtype[Any]
    jumps: bool = False
    """Whether folded weights may have taken a rounding to the other side, which `error` includes and `folding` not."""

    @property
    def folding(self) -> Float64Array:
        """Largest error of a product because this many nodes were folded into its weights."""
        limits = ml_dtypes.finfo(self.dtype)
        u, tiny = float(limits.eps) / 2, float(limits.smallest_subnormal)
        return self.folds * (u * self.magnitude + tiny / 2 * (self.reach + 1))

    @staticmethod
    def exact(array: NDArray[Any]) -> Tensor:
        value = array.astype(np.float64)
        return Tensor(value, np.zeros_like(value), np.abs(value), np.zeros_like(value), 0, array.dtype)


def evaluate(model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Every tensor that a node of the model computes, by its name."""
    tensors = {tensor.name: Tensor.exact(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    tensors |= {name: Tensor.exact(array) for name, array in inputs.items()}
    computed = {}
    for node in model.graph.node:
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        operands = [tensors[name] if name else None for name in node.input]
        result = _stored(_NODES[node.op_type](attributes, *operands))
        computed[node.output[0]] = tensors[node.output[0]] = result
    return computed


def _stored(tensor: Tensor) -> Tensor:
    """After a result of float32 arithmetic was rounded to the tensor's type."""
    if tensor.dtype == np.float32:
        return tensor
    limits = ml_dtypes.finfo(tensor.dtype)
    rounding = float(limits.eps) / 2 * (np.abs(tensor.value) + tensor.error) + float(limits.smallest_subnormal) / 2
    return replace(tensor, error=tensor.error + rounding)


def _rounded(tensor: Tensor, value: Float64Array, error: Float64Array, times: int = 1, **others: Any) -> Tensor:
    """A tensor of that value, with the error that it had before some roundings in float32."""
    rounding = times * (UNIT_ROUNDOFF * (np.abs(value) + error) + float(SINGLE.smallest_subnormal) / 2)
    return replace(tensor, value=value, error=error + rounding, **others)


def _sums(
    multiply: Product, x: Tensor, w: Tensor, bias: Tensor | None, alpha: float = 1.0, beta: float = 1.0
) -> Tensor:
    """alpha * x * w + beta * bias."""
    present = (w.value != 0).astype(np.float64)
    value, magnitude = alpha * multiply(x.value, w.value), abs(alpha) * multiply(np.abs(x.value), np.abs(w.value))
    if bias is not None:
        value, magnitude = value + beta * bias.value, magnitude + np.abs(beta * bias.value)
    operations = multiply(np.ones_like(x.value), present) + 2 + (alpha != 1) + (beta != 1)
    growth = np.expm1(operations * np.log1p(UNIT_ROUNDOFF))
    error = growth * magnitude + operations * (1 + growth) * float(SINGLE.smallest_subnormal) / 2
    error += (1 + growth) * abs(alpha) * multiply(x.error, np.abs(w.value))
    reach = multiply(np.abs(x.value), present)
    if x.folds:  # what may change each weight may change each of these instead
        reach += multiply(np.ones_like(x.value), np.abs(w.value))
    return Tensor(value, error, magnitude, reach, x.folds + (alpha != 1) + (beta != 1), x.dtype)


def _conv(attributes: Attributes, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    window = Window.of(attributes, x.value.shape[2:], w.value.shape[2:], transposed=False)
    return _sums(window.convolve, x, w, _along_channels(bias, x))


def _conv_transpose(attributes: Attributes, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    window = Window.of(attributes, x.value.shape[2:], w.value.shape[2:], transposed=True)
    return _sums(window.spread, x, w, _along_channels(bias, x))


def _along_channels(constant: Tensor | None, like: Tensor) -> Tensor | None:
    if constant is None:
        return None
    return replace(constant, value=constant.value.reshape(-1, *[1] * (like.value.ndim - 2)))


def _gemm(attributes: Attributes, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    a, b = (
        replace(each, value=each.value.T) if attributes.get(name) else each
        for each, name in ((a, "transA"), (b, "transB"))
    )
    beta = attributes.get("beta", 1.0) if bias is not None else 1.0
    return _sums(np.matmul, a, b, bias, attributes.get("alpha", 1.0), beta)


def _matmul(attributes: Attributes, a: Tensor, b: Tensor) -> Tensor:
    return _sums(np.matmul, a, b, None)


def _constant(attributes: Attributes) -> Tensor:
    return Tensor.exact(numpy_helper.to_array(attributes["value"]))


def _transpose(attributes: Attributes, x: Tensor) -> Tensor:
    """Transposes a constant."""
    value = np.transpose(x.value, attributes.get("perm"))
    return replace(Tensor.exact(value), dtype=x.dtype)


def _flatten(attributes: Attributes, x: Tensor) -> Tensor:
    arrays = {name: getattr(x, name).reshape(len(x.value), -1) for name in ("value", "error", "magnitude", "reach")}
    return replace(x, **arrays)


def _clip(attributes: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    value = x.value
    if low is not None:
        value = np.maximum(value, low.value)
    if high is not None:
        value = np.minimum(value, high.value)
    return replace(x, value=value)


def _relu(attributes: Attributes, x: Tensor) -> Tensor:
    return replace(x, value=np.maximum(x.value, 0))


def _leaky_relu(attributes: Attributes, x: Tensor) -> Tensor:
    slope = attributes.get("alpha", 0.01)
    return _rounded(x, np.where(x.value < 0, slope * x.value, x.value), max(1.0, abs(slope)) * x.error)


def _add(attributes: Attributes, a: Tensor, b: Tensor) -> Tensor:
    """Adds to a product a constant or an input, which are exact."""
    if not b.error.any() and not b.folds and b.value.size < a.value.size:
        folds = a.folds + 1
    elif not a.error.any() and a.value.size < b.value.size:
        folds = b.folds + 1
    else:
        folds = max(a.folds, b.folds)
    value = a.value + b.value
    return _rounded(
        a, value, a.error + b.error, magnitude=a.magnitude + b.magnitude, reach=a.reach + b.reach, folds=folds
    )


def _mul(attributes: Attributes, a: Tensor, b: Tensor) -> Tensor:
    """Multiplies a product or an input by an exact tensor, in either order, or two tensors made of one product."""
    if a.value.size == b.value.size and b.magnitude.any() and a.error.any():
        first, second = np.abs(a.value), np.abs(b.value)
        return _rounded(
            a,
            a.value * b.value,
            first * b.error + second * a.error + a.error * b.error,
            magnitude=first * b.magnitude + second * a.magnitude,
            reach=first * b.reach + second * a.reach,
            folds=max(a.folds, b.folds),
        )
    b_is_x = a.value.size < b.value.size or (b.error.any() and not a.error.any())
    x, constant = (b, a) if b_is_x else (a, b)
    factor = np.abs(constant.value)
    return _rounded(
        x,
        x.value * constant.value,
        x.error * factor,
        magnitude=x.magnitude * factor,
        reach=x.reach * np.maximum(factor, 1),
        folds=x.folds + 1,
    )


def _div(attributes: Attributes, x: Tensor, constant: Tensor) -> Tensor:
    return _mul(attributes, x, replace(constant, value=1 / constant.value))


def _function(compute: Callable[[float], float], steepest: float) -> Callable[[Attributes, Tensor], Tensor]:
    """A function of each element, whose slope is nowhere steeper than that."""

    def node(attributes: Attributes, x: Tensor) -> Tensor:
        value = np.vectorize(compute, otypes=[np.float64])(x.value)
        error = steepest * x.error + FUNCTION_ROUNDINGS * UNIT_ROUNDOFF
        return _rounded(x, value, error, FUNCTION_ROUNDINGS, magnitude=steepest * x.magnitude, reach=steepest * x.reach)

    return node


def _logistic(v: float) -> float:
    return 0.5 + 0.5 * math.tanh(v / 2) if v > 0 else math.exp(v) / (1 + math.exp(v))


def _by_tanh(v: float) -> float:
    return v * _logistic(2 * math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))


def _gelu(attributes: Attributes, x: Tensor) -> Tensor:
    exact = attributes.get("approximate", b"none") == b"none"
    return _function(lambda v: v * math.erfc(-v / math.sqrt(2)) / 2 if exact else _by_tanh(v), 1.13)(attributes, x)


def _mish(v: float) -> float:
    return v * math.tanh(max(v, 0) + math.log1p(math.exp(-abs(v))))


def _hard_sigmoid(attributes: Attributes, x: Tensor) -> Tensor:
    alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
    return _function(lambda v: min(max(alpha * v + beta, 0.0), 1.0), abs(alpha))(attributes, x)


def _quantize(attributes: Attributes, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The integers as floats. A value whose error, that of folding included, reaches over the middle of two jumps."""
    reach = x.error + x.folding + 4 * UNIT_ROUNDOFF * np.abs(x.value)
    low, value, high = (
        np.clip(np.rint(each / scale.value) + zero.value, 0, 255)
        for each in (x.value - reach, x.value, x.value + reach)
    )
    error = np.maximum(high - value, value - low)
    return replace(x, value=value, error=error, magnitude=value, folds=0, jumps=x.jumps or x.folds > 0)


def _dequantize(attributes: Attributes, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    value = (x.value - zero.value) * scale.value
    return _rounded(x, value, x.error * scale.value, magnitude=np.abs(value))


def _batch_norm(
    attributes: Attributes, x: Tensor, scale: Tensor, offset: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    factor = scale.value / np.sqrt(variance.value + attributes.get("epsilon", 1e-5))
    shape = (-1, *[1] * (x.value.ndim - 2))
    factor, offset_value, mean_value = (each.reshape(shape) for each in (factor, offset.value, mean.value))
    magnitude = np.abs(factor) * (x.magnitude + np.abs(mean_value)) + np.abs(offset_value)
    error = x.error * np.abs(factor)
    tiny = float(SINGLE.smallest_subnormal)
    return replace(
        x,
        value=(x.value - mean_value) * factor + offset_value,
        # The error before is multiplied by a factor that is itself rounded.
        error=error + BATCH_NORM_ROUNDINGS * (UNIT_ROUNDOFF * (magnitude + error) + tiny),
        magnitude=magnitude,
        reach=x.reach * np.maximum(np.abs(factor), 1),
        folds=x.folds + 1,
    )


def _max_pool(attributes: Attributes, x: Tensor) -> Tensor:
    """The largest value of windows two apart, which is no further off than any of them."""
    window, (top, left, bottom, right) = attributes["kernel_shape"], attributes.get("pads", (0, 0, 0, 0))

    def largest(values: Float64Array, beside: float) -> Float64Array:
        padded = np.pad(values, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=beside)
        windows = np.lib.stride_tricks.sliding_window_view(padded, window, (2, 3))
        return np.asarray(windows[:, :, ::2, ::2].max(axis=(4, 5)))

    beside = {"value": -np.inf, "error": 0.0, "magnitude": 0.0, "reach": 0.0}
    parts = {name: largest(getattr(x, name), value) for name, value in beside.items()}
    return replace(x, **parts)


_NODES: dict[str, Callable[..., Tensor]] = {
    "Add": _add,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Constant": _constant,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DequantizeLinear": _dequantize,
    "Div": _div,
    "Erf": _function(math.erf, 1.13),
    "Flatten": _flatten,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _function(lambda v: v * min(max(v / 6 + 0.5, 0.0), 1.0), 1.5),
    "LeakyRelu": _leaky_relu,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mish": _function(_mish, 1.1),
    "Mul": _mul,
    "QuantizeLinear": _quantize,
    "Relu": _relu,
    "Sigmoid": _function(_logistic, 0.25),
    "Tanh": _function(math.tanh, 1.0),
    "Transpose": _transpose,
}
