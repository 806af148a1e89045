"""Dense counterpart of a compiled layer in PyTorch, with equal folded weights."""

from __future__ import annotations

import math
from typing import Any, assert_never

import torch
from torch import nn
from torch.nn import functional

from codegen.ir.checkpoint import Layer
from codegen.ir.epilogue import POOL_STRIDE
from codegen.ir.layer_spec import (
    Activation,
    AddResidual,
    Clip,
    Conv2d,
    ConvTranspose2d,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Linear,
    MaxPool,
    Mish,
    Quantize,
    Scale,
    Sigmoid,
    Step,
    Swish,
    Tanh,
)
from farm.torch.layer import output_shape
from farm.torch.operators.windows import convolution, transposed_convolution


class DenseLayer(nn.Module):
    """A layer with its zero weights; takes input, residual and gate.

    It computes in the data type of its buffers, so `half()` and `double()` work.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self._spec = layer.spec
        kernel = torch.from_numpy(layer.weights.kernel.copy())
        if isinstance(layer.spec, ConvTranspose2d):
            kernel = channels_first(layer.spec, kernel)
        self.register_buffer("kernel", kernel, persistent=False)
        self.register_buffer("bias", torch.from_numpy(layer.weights.bias.copy()), persistent=False)
        bounds = None if layer.weights.bounds is None else torch.from_numpy(layer.weights.bounds.copy())
        self.register_buffer("bounds", bounds, persistent=False)
        self.kernel: torch.Tensor
        self.bias: torch.Tensor
        self.bounds: torch.Tensor | None

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None, gate: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See DenseLayer."""
        spec = self._spec
        shape = output_shape(spec, x.shape)
        if gate is not None:
            x = x * gate.reshape(*x.shape[:2], *[1] * (x.ndim - 2))
        if self.bounds is not None:
            low, high = (each.reshape(-1, *[1] * (x.ndim - 2)) for each in self.bounds.unbind(1))
            x = x.clamp(low, high)
        if isinstance(spec, Linear):
            values = functional.linear(x, self.kernel, self.bias)
        else:
            images = x.unsqueeze(2) if x.ndim == 3 else x.squeeze(2) if x.ndim == 5 else x
            apply = convolution if isinstance(spec, Conv2d) else transposed_convolution
            values = apply(images, self.kernel, self.bias, **_attributes(spec))
            values = values.squeeze(2) if x.ndim == 3 else values.unsqueeze(2) if x.ndim == 5 else values
        for step in spec.epilogue:
            if not isinstance(step, AddResidual):
                values = applied(step, values)
            elif residual is not None:
                values = values + (residual if list(residual.shape) == shape else residual.reshape(shape))
        return values


def channels_first(spec: ConvTranspose2d, kernel: torch.Tensor) -> torch.Tensor:
    """Weights of a transposed convolution in PyTorch's order; the spec has output channels first."""
    groups, k, c = spec.groups, spec.output_channels // spec.groups, spec.channels // spec.groups
    size = kernel.shape[2:]
    return kernel.reshape(groups, k, c, *size).transpose(1, 2).reshape(groups * c, k, *size).contiguous()


def _attributes(spec: Conv2d | ConvTranspose2d) -> dict[str, Any]:
    """Convolution attributes in ONNX form."""
    found: dict[str, Any] = {
        "strides": list(spec.stride),
        "pads": list(spec.padding),
        "dilations": list(spec.dilation),
        "group": spec.groups,
    }
    return found | ({"output_padding": list(spec.output_padding)} if isinstance(spec, ConvTranspose2d) else {})


def applied(step: Step, values: torch.Tensor) -> torch.Tensor:
    """Applies an epilogue step other than a residual, in the values' data type."""
    match step:
        case Clip(0, None):
            return values.relu()
        case Clip(low, high):
            return values if low is None and high is None else values.clamp(low, high)
        case LeakyRelu(slope):
            return functional.leaky_relu(values, slope)
        case Scale(factor, shift):
            return values * factor + shift
        case Quantize(scale, low, high):
            return (values / scale).round().clamp(low, high) * scale
        case MaxPool(window, (top, left, bottom, right)):
            padded = functional.pad(values, (left, right, top, bottom), value=-math.inf)
            return functional.max_pool2d(padded, window, POOL_STRIDE)
        case AddResidual():
            raise ValueError("the addition of a residual takes two tensors")
    return _activated(step, values)


def _activated(step: Activation, values: torch.Tensor) -> torch.Tensor:
    match step:
        case Sigmoid():
            return values.sigmoid()
        case HardSigmoid(alpha, beta):
            return (alpha * values + beta).clamp(0, 1)
        case HardSwish(alpha, beta):
            return values * (alpha * values + beta).clamp(0, 1)
        case Swish(alpha):
            return functional.silu(values) if alpha == 1 else values * (alpha * values).sigmoid()
        case Gelu(approximate):
            return functional.gelu(values, approximate=approximate)
        case Tanh():
            return values.tanh()
        case Mish():
            return functional.mish(values)
        case _:
            assert_never(step)
