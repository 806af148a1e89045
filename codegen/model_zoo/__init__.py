"""Model zoo: published networks with random weights pruned by magnitude, for demos, tests and benchmarks.

All but the small ones have the nodes that an exporter writes for inference, before folding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from codegen.model_zoo.densenet import densenet121
from codegen.model_zoo.efficientnet import efficientnet_b0
from codegen.model_zoo.mlp import feed_forward, mlp
from codegen.model_zoo.mobilenet_v2 import mobilenet_v2
from codegen.model_zoo.onnx_file import in_float16, write_network
from codegen.model_zoo.pruning import prune, random_weights
from codegen.model_zoo.resnet import resnet18, resnet34, resnet50
from codegen.model_zoo.small import alexnet_cifar10, lenet5, operator_network
from codegen.model_zoo.ten_operators import TEN_OPERATORS
from codegen.model_zoo.unet import unet
from codegen.model_zoo.vgg16 import vgg16

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = [
    "NETWORKS",
    "TEN_OPERATORS",
    "alexnet_cifar10",
    "densenet121",
    "efficientnet_b0",
    "feed_forward",
    "in_float16",
    "lenet5",
    "mlp",
    "mobilenet_v2",
    "operator_network",
    "prune",
    "random_weights",
    "resnet18",
    "resnet34",
    "resnet50",
    "unet",
    "vgg16",
    "write_network",
]

NETWORKS: dict[str, Callable[[float, int], ModelProto]] = {
    "lenet5": lenet5,
    "alexnet_cifar10": alexnet_cifar10,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "vgg16": vgg16,
    "mobilenet_v2": mobilenet_v2,
    "densenet121": densenet121,
    "efficientnet_b0": efficientnet_b0,
    "unet": unet,
    "mlp": mlp,
    "feed_forward": feed_forward,
}
"""Functions that build a network from a sparsity (0 to 1) and a seed, by name."""
