"""Small networks that are quick to build and to compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen.ir.layer_spec import Conv2d, Linear
from codegen.model_zoo.builder import NetworkBuilder
from codegen.model_zoo.ten_operators import TEN_OPERATORS

if TYPE_CHECKING:
    from onnx import ModelProto


def lenet5(sparsity: float, seed: int) -> ModelProto:
    """LeNet-5 in Caffe's variant: input [N, 1, 28, 28], output [N, 10]."""
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


def operator_network(spec: Conv2d, sparsity: float, seed: int) -> ModelProto:
    """One convolution and a Relu, without the spec's epilogue: input [N, C, H, W], output [N, K, H', W']."""
    net = NetworkBuilder(sparsity, seed)
    net.relu(net.conv("conv", "input", spec))
    return net.model("operator", spec.input_shape, spec.output_shape)
