"""Networks made from their papers' tables, with random weights pruned by magnitude: for demos, tests and benchmarks."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.layers import FloatArray, Weights
from codegen.spec import Conv2d

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

OPSET = 17
IR_VERSION = 8
"""Of ONNX 1.12, the first with this opset: old runtimes read it too."""

TEN_OPERATORS: dict[str, Conv2d] = {
    "lenet-conv1": Conv2d(1, 28, 28, 20, 5, 5),
    "lenet-conv2": Conv2d(20, 12, 12, 50, 5, 5),
    "alexnet-conv1": Conv2d(3, 32, 32, 32, 5, 5, padding=(2, 2, 2, 2)),
    "alexnet-conv2": Conv2d(32, 16, 16, 32, 5, 5, padding=(2, 2, 2, 2)),
    "alexnet-conv3": Conv2d(32, 8, 8, 64, 5, 5, padding=(2, 2, 2, 2)),
    "resnet-conv1": Conv2d(64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1)),
    "resnet-conv2": Conv2d(128, 28, 28, 128, 3, 3, padding=(1, 1, 1, 1)),
    "vgg-conv1": Conv2d(3, 224, 224, 64, 3, 3, padding=(1, 1, 1, 1)),
    "vgg-conv2": Conv2d(64, 224, 224, 64, 3, 3, padding=(1, 1, 1, 1)),
    "vgg-conv3": Conv2d(64, 112, 112, 128, 3, 3, padding=(1, 1, 1, 1)),
}
"""The operators of Dong et al. (2020), table 2, by their names there."""


def prune(weights: FloatArray, sparsity: float) -> FloatArray:
    """A copy in which the smallest magnitudes are zero: round(sparsity * size) of them, or more if more were zero.

    Among equal magnitudes the first go. Raises ValueError if the sparsity is not within 0 to 1.
    """
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparsity {sparsity} is not a share of zeros: give 0 to 1")
    pruned = weights.copy()
    smallest = np.argsort(np.abs(weights), axis=None, kind="stable")[: round(sparsity * weights.size)]
    pruned.flat[smallest] = 0
    return pruned


def random_weights(spec: Conv2d, sparsity: float, seed: int = 0) -> Weights:
    """Normal weights of one layer, pruned by magnitude, and a normal bias."""
    rng = np.random.default_rng(seed)
    kernel = rng.standard_normal(spec.weights_shape, dtype=np.float32)
    return Weights(prune(kernel, sparsity), rng.standard_normal(spec.kernels, dtype=np.float32))


def lenet5(sparsity: float, seed: int) -> ModelProto:
    """LeNet-5 as Caffe has it: input [N, 1, 28, 28], output [N, 10]."""
    net = _Network(sparsity, seed)
    x = net.pool(net.conv("conv1", "input", TEN_OPERATORS["lenet-conv1"]), 2, 2)
    x = net.pool(net.conv("conv2", x, TEN_OPERATORS["lenet-conv2"]), 2, 2)
    x = net.relu(net.linear("fc1", net.node("Flatten", "flat", x), 800, 500))
    return net.model("lenet5", (1, 28, 28), net.linear("fc2", x, 500, 10), (10,))


def alexnet_cifar10(sparsity: float, seed: int) -> ModelProto:
    """The small AlexNet for Cifar10: input [N, 3, 32, 32], output [N, 10]."""
    net = _Network(sparsity, seed)
    x = "input"
    for i in (1, 2, 3):
        x = net.pool(net.relu(net.conv(f"conv{i}", x, TEN_OPERATORS[f"alexnet-conv{i}"])), 2, 2)
    return net.model("alexnet_cifar10", (3, 32, 32), net.linear("fc", net.node("Flatten", "flat", x), 1024, 10), (10,))


def small_resnet(sparsity: float, seed: int, width: int = 64) -> ModelProto:
    """ResNet-18 without batch normalisation, 20 convolutions: input [N, 3, 224, 224], output [N, 1000].

    `width` is the number of channels of the first stage; each of the three others has twice as many as the one before.
    """
    net = _Network(sparsity, seed)
    x = net.relu(net.conv("conv1", "input", Conv2d(3, 224, 224, width, 7, 7, (2, 2), (3, 3, 3, 3))))
    x = net.pool(x, 3, 2, padding=1)
    channels, size = width, 56
    for stage, kernels in enumerate((width, 2 * width, 4 * width, 8 * width), start=1):
        for block in (1, 2):
            stride, name = (2 if stage > 1 and block == 1 else 1), f"layer{stage}.{block}"
            first = Conv2d(channels, size, size, kernels, 3, 3, (stride, stride), (1, 1, 1, 1))
            shortcut = x
            if stride == 2:
                down = Conv2d(channels, size, size, kernels, 1, 1, (2, 2))
                shortcut = net.conv(f"{name}.downsample", x, down)
            size = first.output_height
            y = net.relu(net.conv(f"{name}.conv1", x, first))
            y = net.conv(f"{name}.conv2", y, Conv2d(kernels, size, size, kernels, 3, 3, padding=(1, 1, 1, 1)))
            x = net.relu(net.node("Add", f"{name}.add", y, shortcut))
            channels = kernels
    x = net.node("Flatten", "flat", net.node("GlobalAveragePool", "pool", x))
    return net.model("small_resnet", (3, 224, 224), net.linear("fc", x, 8 * width, 1000), (1000,))


def operator_network(spec: Conv2d, sparsity: float, seed: int) -> ModelProto:
    """One convolution and a Relu: input [N, C, H, W], output [N, K, H', W']."""
    net = _Network(sparsity, seed)
    return net.model("operator", spec.input_shape, net.relu(net.conv("conv", "input", spec)), spec.output_shape)


def write_network(path: Path | str, model: ModelProto) -> None:
    """Writes an ONNX file, whole or not at all."""
    path = Path(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(model.SerializeToString(deterministic=True))
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@dataclass
class _Network:
    """Nodes and weights as they are added; each method gives the name of its output tensor."""

    sparsity: float
    seed: int
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def node(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        output = f"{name}.output"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name, **attributes))
        return output

    def constants(self, name: str, shape: tuple[int, ...], fan_in: int) -> list[str]:
        """Weights of He's variance, pruned, and a small bias for each of the first dimension."""
        from onnx import numpy_helper

        kernel = self.rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / fan_in))
        bias = self.rng.standard_normal(shape[0], np.float32) * np.float32(0.1)
        for array, kind in ((prune(kernel, self.sparsity), "weight"), (bias, "bias")):
            self.weights.append(numpy_helper.from_array(array, f"{name}.{kind}"))
        return [f"{name}.weight", f"{name}.bias"]

    def conv(self, name: str, x: str, spec: Conv2d) -> str:
        constants = self.constants(name, spec.weights_shape, spec.weights_count // spec.kernels)
        return self.node("Conv", name, x, *constants, strides=list(spec.stride), pads=list(spec.padding))

    def linear(self, name: str, x: str, inputs: int, outputs: int) -> str:
        return self.node("Gemm", name, x, *self.constants(name, (outputs, inputs), inputs), transB=1)

    def relu(self, x: str) -> str:
        return self.node("Relu", f"relu{len(self.nodes)}", x)

    def pool(self, x: str, size: int, stride: int, padding: int = 0) -> str:
        sizes = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
        return self.node("MaxPool", f"pool{len(self.nodes)}", x, **sizes)

    def model(self, name: str, input_shape: tuple[int, ...], output: str, output_shape: tuple[int, ...]) -> ModelProto:
        from onnx import TensorProto, helper

        self.nodes.append(helper.make_node("Identity", [output], ["output"], "output"))
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", *input_shape])],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", *output_shape])],
            self.weights,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="farm")
