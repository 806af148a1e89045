"""ResNet-50."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen.networks.builder import NetworkBuilder, square_conv
from codegen.spec import Conv2d, Linear

if TYPE_CHECKING:
    from onnx import ModelProto

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width of the 3x3 convolutions, number of blocks."""

EXPANSION = 4
"""A block puts out this many times its width."""

LAST_SCALE = 0.2
"""Scale of the normalisation before an addition, so that 16 additions do not let the activations grow."""


def resnet50(sparsity: float, seed: int) -> ModelProto:
    """ResNet-50 of He et al. (2015), table 1: input [N, 3, 224, 224], output [N, 1000].

    Version 1.5: the 3x3 convolution of a block has the stride, the paper has it in the 1x1 before.
    """
    net = NetworkBuilder(sparsity, seed)
    x = net.relu(_conv_norm(net, "conv1", "bn1", "input", square_conv(3, 224, 64, 7, stride=2)))
    x = net.max_pool(x, 3, 2, padding=1)
    channels, size = 64, 56
    for stage, (width, blocks) in enumerate(STAGES, start=1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            x = _block(net, f"layer{stage}.{block}", x, channels, size, width, stride)
            channels, size = EXPANSION * width, size // stride
    net.gemm("fc", net.average(x), Linear(channels, 1000))
    return net.model("resnet50", (3, 224, 224), (1000,))


def _block(net: NetworkBuilder, name: str, x: str, channels: int, size: int, width: int, stride: int) -> str:
    """1x1, 3x3 and 1x1 convolutions, and the shortcut around them: itself a convolution where the shape changes."""
    kernels, smaller = EXPANSION * width, size // stride
    y = net.relu(_conv_norm(net, f"{name}.conv1", f"{name}.bn1", x, square_conv(channels, size, width, 1)))
    y = net.relu(_conv_norm(net, f"{name}.conv2", f"{name}.bn2", y, square_conv(width, size, width, 3, stride)))
    y = _conv_norm(net, f"{name}.conv3", f"{name}.bn3", y, square_conv(width, smaller, kernels, 1), LAST_SCALE)
    if channels != kernels:
        down = square_conv(channels, size, kernels, 1, stride)
        x = _conv_norm(net, f"{name}.downsample.0", f"{name}.downsample.1", x, down)
    return net.relu(net.add(f"{name}.add", y, x))


def _conv_norm(net: NetworkBuilder, conv: str, norm: str, x: str, spec: Conv2d, scale: float = 1) -> str:
    return net.batch_norm(norm, net.conv(conv, x, spec, bias=False), spec.kernels, scale)
