"""Builder of ONNX networks: the nodes that an exporter writes, with random weights pruned by magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.ir.checkpoint import FloatArray
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, Linear
from codegen.model_zoo.pruning import kept_power, prune

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

OPSET = 17
IR_VERSION = 8
"""IR version of ONNX 1.12, the first release with this opset, which old runtimes read too."""


def square_conv(channels: int, size: int, outputs: int, extent: int, stride: int = 1, groups: int = 1) -> Conv2d:
    """A convolution of `size` x `size` images with an odd extent, padded so that stride 1 keeps the size."""
    padding = extent // 2
    return Conv2d(channels, size, size, outputs, extent, extent, (stride,) * 2, (padding,) * 4, groups=groups)


@dataclass
class NetworkBuilder:
    """Builds a model node by node; each method that adds a node returns the name of its output.

    The network's input is the tensor `input`. `sparsity` is the share of zeros, 0 to 1, in every weight tensor.
    """

    sparsity: float
    seed: int

    def __post_init__(self) -> None:
        import onnx

        self.rng = np.random.default_rng(self.seed)
        # Nodes and weights are added in place: onnx.helper's make_graph and make_model each copy all weights.
        self.proto = onnx.ModelProto(ir_version=IR_VERSION, producer_name="farm")
        self.proto.opset_import.add(domain="", version=OPSET)

    def node(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        output = f"{name}.output"
        self.proto.graph.node.append(helper.make_node(operator, list(inputs), [output], name, **attributes))
        return output

    def conv(self, name: str, x: str, spec: Conv2d, bias: bool = True) -> str:
        weights = self._weight(name, spec.weights_shape, spec.weights_count // spec.output_channels)
        biases = [self._bias(name, spec.output_channels)] if bias else []
        return self.node("Conv", name, x, weights, *biases, **_attributes(spec))

    def conv_transpose(self, name: str, x: str, spec: ConvTranspose2d) -> str:
        shape = spec.channels, spec.output_channels // spec.groups, spec.kernel_height, spec.kernel_width
        weights = self._weight(name, shape, spec.weights_count // spec.output_channels // prod(spec.stride))
        bias = self._bias(name, spec.output_channels)
        more = {"output_padding": list(spec.output_padding)}
        return self.node("ConvTranspose", name, x, weights, bias, **_attributes(spec), **more)

    def gemm(self, name: str, x: str, spec: Linear) -> str:
        weights = self._weight(name, (spec.outputs, spec.inputs), spec.inputs)
        return self.node("Gemm", name, x, weights, self._bias(name, spec.outputs), transB=1)

    def matmul(self, name: str, x: str, spec: Linear) -> str:
        """A MatMul with weights [inputs, outputs], then an Add with the bias as first input, as PyTorch exports it."""
        weights = self._weight(name, (spec.inputs, spec.outputs), spec.inputs)
        bias = self._bias(name, spec.outputs)
        return self.add(f"{name}.add", bias, self.node("MatMul", name, x, weights))

    def batch_norm(self, name: str, x: str, channels: int, scale: float = 1) -> str:
        """A trained-looking BatchNormalization: scales around `scale`, variances near one, small shifts and means."""
        scales = self.rng.uniform(0.5 * scale, 1.5 * scale, channels).astype(np.float32)
        variances = self.rng.uniform(0.75, 1.75, channels).astype(np.float32)
        shifts, means = self.rng.standard_normal((2, channels), np.float32) * np.float32(0.1)
        constants = {"weight": scales, "bias": shifts, "running_mean": means, "running_var": variances}
        names = [self._tensor(f"{name}.{kind}", array) for kind, array in constants.items()]
        return self.node("BatchNormalization", name, x, *names, epsilon=1e-5, momentum=0.9, training_mode=0)

    def relu(self, x: str) -> str:
        return self.node("Relu", self._next("relu"), x)

    def leaky_relu(self, x: str, slope: float) -> str:
        return self.node("LeakyRelu", self._next("leaky_relu"), x, alpha=slope)

    def relu6(self, x: str) -> str:
        """A Clip whose bounds are Constant nodes."""
        name = self._next("relu6")
        bounds = [
            self.node("Constant", f"{name}.{kind}", value=_scalar(value)) for kind, value in (("min", 0), ("max", 6))
        ]
        return self.node("Clip", name, x, *bounds)

    def silu(self, x: str) -> str:
        """x * sigmoid(x), in two nodes as exporters write it."""
        name = self._next("silu")
        return self.node("Mul", f"{name}.product", x, self.node("Sigmoid", name, x))

    def add(self, name: str, x: str, y: str) -> str:
        return self.node("Add", name, x, y)

    def max_pool(self, x: str, size: int, stride: int, padding: int = 0) -> str:
        sizes = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
        return self.node("MaxPool", self._next("pool"), x, **sizes)

    def average_pool(self, x: str, size: int, stride: int) -> str:
        sizes = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [0] * 4}
        return self.node("AveragePool", self._next("pool"), x, ceil_mode=0, count_include_pad=1, **sizes)

    def average(self, x: str) -> str:
        """The mean of each channel, [N, C], of a tensor [N, C, H, W]."""
        return self.flatten(self.node("GlobalAveragePool", self._next("average"), x))

    def flatten(self, x: str) -> str:
        return self.node("Flatten", self._next("flatten"), x, axis=1)

    def model(self, name: str, input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> ModelProto:
        """The model, with the last node's output named `output`. Shapes are per image."""
        from onnx import TensorProto, helper

        graph = self.proto.graph
        graph.name = name
        graph.node[-1].output[0] = "output"
        graph.input.append(helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", *input_shape]))
        graph.output.append(helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", *output_shape]))
        return self.proto

    def _weight(self, name: str, shape: tuple[int, ...], fan_in: int) -> str:
        """Pruned normal weights scaled to He's variance 2 / fan_in, so that signals do not fade in a deep network."""
        kernel = prune(self.rng.standard_normal(shape, np.float32), self.sparsity)
        if power := kept_power(self.sparsity):
            kernel *= np.float32(np.sqrt(2 / fan_in / power))
        return self._tensor(f"{name}.weight", kernel)

    def _bias(self, name: str, size: int) -> str:
        return self._tensor(f"{name}.bias", self.rng.standard_normal(size, np.float32) * np.float32(0.1))

    def _tensor(self, name: str, array: FloatArray) -> str:
        from onnx import numpy_helper

        self.proto.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _next(self, kind: str) -> str:
        """A unique node name."""
        return f"{kind}{len(self.proto.graph.node)}"


def _attributes(spec: Conv2d | ConvTranspose2d) -> dict[str, Any]:
    return {
        "kernel_shape": [spec.kernel_height, spec.kernel_width],
        "strides": list(spec.stride),
        "pads": list(spec.padding),
        "dilations": list(spec.dilation),
        "group": spec.groups,
    }


def _scalar(value: float) -> TensorProto:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.array(value, np.float32))
