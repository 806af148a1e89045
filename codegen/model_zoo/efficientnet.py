"""EfficientNet-B0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen.ir.layer_spec import Conv2d, Linear
from codegen.model_zoo.builder import NetworkBuilder, square_conv

if TYPE_CHECKING:
    from onnx import ModelProto

TABLE = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)
"""Expansion, extent of the depthwise filters, output channels, blocks and stride of the first block of each stage."""

SQUEEZE = 4
"""Ratio of a block's input channels to the channels that its gates are computed from."""

LAST_SCALE = 0.4
"""Scale of the normalisation before an addition, which keeps activations from growing."""

SCALE = 1.2
"""Scale of other normalisations: weights are scaled for Relu, but SiLU passes less signal, and gates halve it."""


def efficientnet_b0(sparsity: float, seed: int) -> ModelProto:
    """EfficientNet-B0 of Tan and Le (2019), table 1: input [N, 3, 224, 224], output [N, 1000]."""
    net = NetworkBuilder(sparsity, seed)
    x = _conv_norm_silu(net, "stem", "input", square_conv(3, 224, 32, 3, stride=2))
    channels, size = 32, 112
    for stage, (expansion, extent, outputs, blocks, first_stride) in enumerate(TABLE, start=1):
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            shape = square_conv(channels, size, outputs, extent, stride)
            x = _block(net, f"stage{stage}.{block}", x, shape, expansion)
            channels, size = outputs, size // stride
    x = _conv_norm_silu(net, "head", x, square_conv(channels, size, 1280, 1))
    net.gemm("classifier", net.average(x), Linear(1280, 1000))
    return net.model("efficientnet_b0", (3, 224, 224), (1000,))


def _block(net: NetworkBuilder, name: str, x: str, shape: Conv2d, expansion: int) -> str:
    """An inverted residual block with `shape`'s input and output: 1x1, depthwise, channel gates, linear 1x1."""
    channels, size, outputs, stride = shape.channels, shape.height, shape.output_channels, shape.stride[0]
    inner, y = expansion * channels, x
    if expansion > 1:
        y = _conv_norm_silu(net, f"{name}.expand", y, square_conv(channels, size, inner, 1))
    depthwise = square_conv(inner, size, inner, shape.kernel_height, stride, groups=inner)
    y = _gated(net, f"{name}.gate", _conv_norm_silu(net, f"{name}.depthwise", y, depthwise), inner, channels // SQUEEZE)
    added = stride == 1 and channels == outputs
    project = square_conv(inner, size // stride, outputs, 1)
    y = _conv_norm(net, f"{name}.project", y, project, LAST_SCALE if added else SCALE)
    return net.add(f"{name}.add", x, y) if added else y


def _gated(net: NetworkBuilder, name: str, x: str, channels: int, squeezed: int) -> str:
    """Squeeze and excitation: each channel of an image times a gate from 0 to 1, computed from all channels' means."""
    means = net.node("GlobalAveragePool", f"{name}.average", x)
    y = net.silu(net.conv(f"{name}.reduce", means, square_conv(channels, 1, squeezed, 1)))
    gate = net.node("Sigmoid", f"{name}.sigmoid", net.conv(f"{name}.expand", y, square_conv(squeezed, 1, channels, 1)))
    return net.node("Mul", f"{name}.scale", gate, x)


def _conv_norm_silu(net: NetworkBuilder, name: str, x: str, spec: Conv2d) -> str:
    return net.silu(_conv_norm(net, name, x, spec))


def _conv_norm(net: NetworkBuilder, name: str, x: str, spec: Conv2d, scale: float = SCALE) -> str:
    return net.batch_norm(f"{name}.norm", net.conv(f"{name}.conv", x, spec, bias=False), spec.output_channels, scale)
