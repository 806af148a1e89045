"""MobileNetV2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen.ir.layer_spec import Conv2d, Linear
from codegen.model_zoo.builder import NetworkBuilder, square_conv

if TYPE_CHECKING:
    from onnx import ModelProto

TABLE = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""t, c, n, s of each stage in the paper: expansion, output channels, blocks, stride of the first block."""

LAST_SCALE = 0.2
"""Scale of the normalisation before an addition, which keeps activations from growing."""


def mobilenet_v2(sparsity: float, seed: int) -> ModelProto:
    """MobileNetV2 of Sandler et al. (2018), table 2, at width 1.0: input [N, 3, 224, 224], output [N, 1000]."""
    net = NetworkBuilder(sparsity, seed)
    x = net.relu6(_conv_norm(net, "stem", "input", square_conv(3, 224, 32, 3, stride=2)))
    channels, size = 32, 112
    for stage, (expansion, outputs, blocks, first_stride) in enumerate(TABLE, start=1):
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            x = _block(net, f"stage{stage}.{block}", x, square_conv(channels, size, outputs, 3, stride), expansion)
            channels, size = outputs, size // stride
    x = net.relu6(_conv_norm(net, "head", x, square_conv(channels, size, 1280, 1)))
    net.gemm("classifier", net.average(x), Linear(1280, 1000))
    return net.model("mobilenet_v2", (3, 224, 224), (1000,))


def _block(net: NetworkBuilder, name: str, x: str, shape: Conv2d, expansion: int) -> str:
    """An inverted residual block with `shape`'s input and output: 1x1, depthwise 3x3, linear 1x1."""
    channels, size, outputs, stride = shape.channels, shape.height, shape.output_channels, shape.stride[0]
    inner, y = expansion * channels, x
    if expansion > 1:
        y = net.relu6(_conv_norm(net, f"{name}.expand", y, square_conv(channels, size, inner, 1)))
    depthwise = square_conv(inner, size, inner, 3, stride, groups=inner)
    y = net.relu6(_conv_norm(net, f"{name}.depthwise", y, depthwise))
    added = stride == 1 and channels == outputs
    project = square_conv(inner, size // stride, outputs, 1)
    y = _conv_norm(net, f"{name}.project", y, project, LAST_SCALE if added else 1)
    return net.add(f"{name}.add", x, y) if added else y


def _conv_norm(net: NetworkBuilder, name: str, x: str, spec: Conv2d, scale: float = 1) -> str:
    return net.batch_norm(f"{name}.norm", net.conv(f"{name}.conv", x, spec, bias=False), spec.output_channels, scale)
