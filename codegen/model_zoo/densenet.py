"""DenseNet-121."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen.ir.layer_spec import Conv2d, Linear
from codegen.model_zoo.builder import NetworkBuilder, square_conv

if TYPE_CHECKING:
    from onnx import ModelProto

BLOCKS = (6, 12, 24, 16)
"""Dense layers of each block."""

GROWTH = 32
"""Channels that each dense layer adds."""

BOTTLENECK = 4
"""Output channels of a dense layer's 1x1 convolution, as a multiple of the growth."""


def densenet121(sparsity: float, seed: int) -> ModelProto:
    """DenseNet-121 of Huang et al. (2017), table 1: input [N, 3, 224, 224], output [N, 1000].

    Normalisation and Relu precede each convolution but the first. A dense layer reads the outputs of all layers before
    it in its block through its own Concat, as PyTorch exports it.
    """
    net = NetworkBuilder(sparsity, seed)
    x = net.conv("conv0", "input", square_conv(3, 224, 64, 7, stride=2), bias=False)
    x = net.max_pool(net.relu(net.batch_norm("norm0", x, 64)), 3, 2, padding=1)
    channels, size = 64, 56
    for block, layers in enumerate(BLOCKS, start=1):
        x, channels = _dense_block(net, f"block{block}", x, channels, size, layers)
        if block < len(BLOCKS):
            shape = square_conv(channels, size, channels // 2, 1)
            x = net.average_pool(_norm_relu_conv(net, f"transition{block}", "", x, shape), 2, 2)
            channels, size = channels // 2, size // 2
    x = net.relu(net.batch_norm("norm5", x, channels))
    net.gemm("classifier", net.average(x), Linear(channels, 1000))
    return net.model("densenet121", (3, 224, 224), (1000,))


def _dense_block(net: NetworkBuilder, name: str, x: str, channels: int, size: int, layers: int) -> tuple[str, int]:
    """The block's input and its layers' outputs concatenated, and the number of their channels."""
    features = [x]
    for number in range(1, layers + 1):
        layer, width = f"{name}.layer{number}", BOTTLENECK * GROWTH
        y = _norm_relu_conv(net, layer, "1", x, square_conv(channels, size, width, 1))
        features.append(_norm_relu_conv(net, layer, "2", y, square_conv(width, size, GROWTH, 3)))
        x, channels = net.node("Concat", f"{layer}.concat", *features, axis=1), channels + GROWTH
    return x, channels


def _norm_relu_conv(net: NetworkBuilder, name: str, number: str, x: str, spec: Conv2d) -> str:
    normalised = net.relu(net.batch_norm(f"{name}.norm{number}", x, spec.channels))
    return net.conv(f"{name}.conv{number}", normalised, spec, bias=False)
