"""VGG-16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen.ir.layer_spec import Conv2d, Linear
from codegen.model_zoo.builder import NetworkBuilder, square_conv

if TYPE_CHECKING:
    from onnx import ModelProto


def vgg16_stages(width: int = 64) -> tuple[tuple[Conv2d, ...], ...]:
    """The convolutions of each of the five stages, which pooling separates."""
    stages = []
    channels, size = 3, 224
    for outputs, count in ((width, 2), (2 * width, 2), (4 * width, 3), (8 * width, 3), (8 * width, 3)):
        inputs = (channels, *[outputs] * (count - 1))
        stages.append(tuple(square_conv(each, size, outputs, 3) for each in inputs))
        channels, size = outputs, size // 2
    return tuple(stages)


def vgg16_classifier(width: int = 64) -> tuple[Linear, ...]:
    """The fully connected layers; the first one reads the last stage's flattened 7x7 output."""
    features, hidden = 8 * width * 7 * 7, 64 * width
    return Linear(features, hidden), Linear(hidden, hidden), Linear(hidden, 1000)


def vgg16(sparsity: float, seed: int, width: int = 64) -> ModelProto:
    """Configuration D of Simonyan and Zisserman (2014): input [N, 3, 224, 224], output [N, 1000].

    `width` is the number of channels of the first stage, and all other sizes scale with it. At 64 the network has 138
    million weights (553 MB). Training's dropout is omitted.
    """
    net = NetworkBuilder(sparsity, seed)
    x = "input"
    for stage, specs in enumerate(vgg16_stages(width), start=1):
        for number, spec in enumerate(specs, start=1):
            x = net.relu(net.conv(f"conv{stage}_{number}", x, spec))
        x = net.max_pool(x, 2, 2)
    fc6, fc7, fc8 = vgg16_classifier(width)
    x = net.relu(net.gemm("fc6", net.flatten(x), fc6))
    x = net.relu(net.gemm("fc7", x, fc7))
    net.gemm("fc8", x, fc8)
    return net.model("vgg16", (3, 224, 224), (1000,))
