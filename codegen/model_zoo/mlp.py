"""Networks of fully connected layers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from codegen.ir.layer_spec import Linear
from codegen.model_zoo.builder import NetworkBuilder

if TYPE_CHECKING:
    from onnx import ModelProto

SIZES = (784, 1024, 1024, 512)
CLASSES = 10

POSITIONS, FEATURES, HIDDEN = 16, 256, 1024


def mlp(sparsity: float, seed: int) -> ModelProto:
    """A perceptron with three hidden layers: input [N, 1, 28, 28], output [N, 10].

    The hidden layers are MatMul and Add, the last layer is a Gemm, the two forms that exporters write.
    """
    net = NetworkBuilder(sparsity, seed)
    x = net.flatten("input")
    for number, (inputs, outputs) in enumerate(pairwise(SIZES), start=1):
        x = net.relu(net.matmul(f"fc{number}", x, Linear(inputs, outputs)))
    net.gemm("classifier", x, Linear(SIZES[-1], CLASSES))
    return net.model("mlp", (1, 28, 28), (CLASSES,))


def feed_forward(sparsity: float, seed: int) -> ModelProto:
    """The feed-forward block of a transformer with its residual: input and output [N, 16, 256]."""
    net = NetworkBuilder(sparsity, seed)
    x = net.relu(net.matmul("fc1", "input", Linear(FEATURES, HIDDEN)))
    net.add("add", "input", net.matmul("fc2", x, Linear(HIDDEN, FEATURES)))
    return net.model("feed_forward", (POSITIONS, FEATURES), (POSITIONS, FEATURES))
