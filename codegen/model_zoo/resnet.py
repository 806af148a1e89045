"""ResNet-18, ResNet-34 and ResNet-50."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from codegen.ir.layer_spec import Conv2d, Linear
from codegen.model_zoo.builder import NetworkBuilder, square_conv

if TYPE_CHECKING:
    from onnx import ModelProto

Block = Callable[[NetworkBuilder, str, str, int, int, int, int], str]
"""Adds a block of this name, input, input channels, input size, width and stride; returns its output's name."""

EXPANSION = 4
"""Output channels of a bottleneck as a multiple of its width."""

LAST_SCALE = 0.2
"""Scale of the normalisation before an addition, which keeps activations from growing over 16 additions."""


def resnet18(sparsity: float, seed: int, width: int = 64) -> ModelProto:
    """ResNet-18 of He et al. (2015), table 1: input [N, 3, 224, 224], output [N, 1000].

    `width` is the number of channels of the first stage; it doubles in each further stage.
    """
    return _resnet("resnet18", (2, 2, 2, 2), _basic_block, 1, sparsity, seed, width)


def resnet34(sparsity: float, seed: int) -> ModelProto:
    """ResNet-34 of He et al. (2015), table 1: input [N, 3, 224, 224], output [N, 1000]."""
    return _resnet("resnet34", (3, 4, 6, 3), _basic_block, 1, sparsity, seed)


def resnet50(sparsity: float, seed: int) -> ModelProto:
    """ResNet-50 of He et al. (2015), table 1: input [N, 3, 224, 224], output [N, 1000].

    Version 1.5: a block's stride is in its 3x3 convolution; in the paper it is in the 1x1 convolution before.
    """
    return _resnet("resnet50", (3, 4, 6, 3), _bottleneck, EXPANSION, sparsity, seed)


def _resnet(
    name: str, depths: tuple[int, ...], block_of: Block, expansion: int, sparsity: float, seed: int, width: int = 64
) -> ModelProto:
    net = NetworkBuilder(sparsity, seed)
    x = net.relu(_conv_norm(net, "conv1", "bn1", "input", square_conv(3, 224, width, 7, stride=2)))
    x = net.max_pool(x, 3, 2, padding=1)
    channels, size = width, 56
    for stage, blocks in enumerate(depths, start=1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            x = block_of(net, f"layer{stage}.{block}", x, channels, size, width, stride)
            channels, size = expansion * width, size // stride
        width *= 2
    net.gemm("fc", net.average(x), Linear(channels, 1000))
    return net.model(name, (3, 224, 224), (1000,))


def _basic_block(net: NetworkBuilder, name: str, x: str, channels: int, size: int, width: int, stride: int) -> str:
    """A block of two 3x3 convolutions and the shortcut around them."""
    smaller = size // stride
    y = net.relu(_conv_norm(net, f"{name}.conv1", f"{name}.bn1", x, square_conv(channels, size, width, 3, stride)))
    y = _conv_norm(net, f"{name}.conv2", f"{name}.bn2", y, square_conv(width, smaller, width, 3), LAST_SCALE)
    return net.relu(net.add(f"{name}.add", y, _shortcut(net, name, x, channels, size, width, stride)))


def _bottleneck(net: NetworkBuilder, name: str, x: str, channels: int, size: int, width: int, stride: int) -> str:
    """A block of 1x1, 3x3 and 1x1 convolutions and the shortcut around them."""
    outputs, smaller = EXPANSION * width, size // stride
    y = net.relu(_conv_norm(net, f"{name}.conv1", f"{name}.bn1", x, square_conv(channels, size, width, 1)))
    y = net.relu(_conv_norm(net, f"{name}.conv2", f"{name}.bn2", y, square_conv(width, size, width, 3, stride)))
    y = _conv_norm(net, f"{name}.conv3", f"{name}.bn3", y, square_conv(width, smaller, outputs, 1), LAST_SCALE)
    return net.relu(net.add(f"{name}.add", y, _shortcut(net, name, x, channels, size, outputs, stride)))


def _shortcut(net: NetworkBuilder, name: str, x: str, channels: int, size: int, outputs: int, stride: int) -> str:
    """The block's input, through a 1x1 convolution if the shape changes."""
    if channels == outputs:
        return x
    down = square_conv(channels, size, outputs, 1, stride)
    return _conv_norm(net, f"{name}.downsample.0", f"{name}.downsample.1", x, down)


def _conv_norm(net: NetworkBuilder, conv: str, norm: str, x: str, spec: Conv2d, scale: float = 1) -> str:
    return net.batch_norm(norm, net.conv(conv, x, spec, bias=False), spec.output_channels, scale)
