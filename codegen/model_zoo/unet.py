"""A U-Net."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen.ir.layer_spec import ConvTranspose2d
from codegen.model_zoo.builder import NetworkBuilder, square_conv

if TYPE_CHECKING:
    from onnx import ModelProto

SIZE = 128
WIDTHS = (32, 64, 128, 256)
"""Channels of each level from the input down, half of the paper's."""

BOTTOM_WIDTH = 512
SLOPE = 0.1


def unet(sparsity: float, seed: int) -> ModelProto:
    """A two-class U-Net after Ronneberger et al. (2015): input [N, 3, 128, 128], output [N, 2, 128, 128], 0 to 1.

    Differences from the paper: half the width, padded convolutions without cropping, batch normalisation after each
    convolution, LeakyRelu on the way down and Relu on the way up.
    """
    net = NetworkBuilder(sparsity, seed)
    x, channels, size = "input", 3, SIZE
    skips = []
    for level, width in enumerate(WIDTHS, start=1):
        x = _double_conv(net, f"down{level}", x, channels, size, width, leaky=True)
        skips.append(x)
        x, channels, size = net.max_pool(x, 2, 2), width, size // 2
    x = _double_conv(net, "bottom", x, channels, size, BOTTOM_WIDTH, leaky=True)
    channels = BOTTOM_WIDTH
    for level, width in reversed(list(enumerate(WIDTHS, start=1))):
        x = net.conv_transpose(f"up{level}.up", x, ConvTranspose2d(channels, size, size, width, 2, 2, (2, 2)))
        x, size = net.node("Concat", f"up{level}.concat", skips.pop(), x, axis=1), 2 * size
        x, channels = _double_conv(net, f"up{level}", x, 2 * width, size, width, leaky=False), width
    net.node("Sigmoid", "sigmoid", net.conv("classes", x, square_conv(channels, size, 2, 1)))
    return net.model("unet", (3, SIZE, SIZE), (2, SIZE, SIZE))


def _double_conv(net: NetworkBuilder, name: str, x: str, channels: int, size: int, width: int, leaky: bool) -> str:
    for number, inputs in ((1, channels), (2, width)):
        x = net.conv(f"{name}.conv{number}", x, square_conv(inputs, size, width, 3))
        x = net.batch_norm(f"{name}.norm{number}", x, width)
        x = net.leaky_relu(x, SLOPE) if leaky else net.relu(x)
    return x
