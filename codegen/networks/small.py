"""Small networks: quick to make and to compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen.networks.builder import NetworkBuilder, square_conv
from codegen.networks.ten_operators import TEN_OPERATORS
from codegen.spec import Conv2d, Linear

if TYPE_CHECKING:
    from onnx import ModelProto


def lenet5(sparsity: float, seed: int) -> ModelProto:
    """LeNet-5 as Caffe has it: input [N, 1, 28, 28], output [N, 10]."""
    net = NetworkBuilder(sparsity, seed)
    x = net.max_pool(net.conv("conv1", "input", TEN_OPERATORS["lenet-conv1"]), 2, 2)
    x = net.max_pool(net.conv("conv2", x, TEN_OPERATORS["lenet-conv2"]), 2, 2)
    x = net.relu(net.gemm("fc1", net.flatten(x), Linear(800, 500)))
    net.gemm("fc2", x, Linear(500, 10))
    return net.model("lenet5", (1, 28, 28), (10,))


def alexnet_cifar10(sparsity: float, seed: int) -> ModelProto:
    """The small AlexNet for Cifar10: input [N, 3, 32, 32], output [N, 10]."""
    net = NetworkBuilder(sparsity, seed)
    x = "input"
    for i in (1, 2, 3):
        x = net.max_pool(net.relu(net.conv(f"conv{i}", x, TEN_OPERATORS[f"alexnet-conv{i}"])), 2, 2)
    net.gemm("fc", net.flatten(x), Linear(1024, 10))
    return net.model("alexnet_cifar10", (3, 32, 32), (10,))


def small_resnet(sparsity: float, seed: int, width: int = 64) -> ModelProto:
    """ResNet-18 without batch normalisation, 20 convolutions: input [N, 3, 224, 224], output [N, 1000].

    `width` is the number of channels of the first stage; each of the three others has twice as many as the one before.
    """
    net = NetworkBuilder(sparsity, seed)
    x = net.relu(net.conv("conv1", "input", square_conv(3, 224, width, 7, stride=2)))
    x = net.max_pool(x, 3, 2, padding=1)
    channels, size = width, 56
    for stage, kernels in enumerate((width, 2 * width, 4 * width, 8 * width), start=1):
        for block in (1, 2):
            stride, name = (2 if stage > 1 and block == 1 else 1), f"layer{stage}.{block}"
            shortcut = x
            if stride == 2:
                shortcut = net.conv(f"{name}.downsample", x, square_conv(channels, size, kernels, 1, stride))
            y = net.relu(net.conv(f"{name}.conv1", x, square_conv(channels, size, kernels, 3, stride)))
            size //= stride
            y = net.conv(f"{name}.conv2", y, square_conv(kernels, size, kernels, 3))
            x = net.relu(net.add(f"{name}.add", y, shortcut))
            channels = kernels
    net.gemm("fc", net.average(x), Linear(8 * width, 1000))
    return net.model("small_resnet", (3, 224, 224), (1000,))


def operator_network(spec: Conv2d, sparsity: float, seed: int) -> ModelProto:
    """One convolution and a Relu: input [N, C, H, W], output [N, K, H', W']. The spec's own epilogue is left out."""
    net = NetworkBuilder(sparsity, seed)
    net.relu(net.conv("conv", "input", spec))
    return net.model("operator", spec.input_shape, spec.output_shape)
