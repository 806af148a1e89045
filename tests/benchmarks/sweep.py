"""Checkpoints of a pruning sweep: each step prunes half of the layers further and leaves the others as they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from codegen.model_zoo import alexnet_cifar10, lenet5, prune, resnet18, write_network

if TYPE_CHECKING:
    from onnx import ModelProto

STEPS = 10
FIRST_SPARSITY = 0.85
LAST_SPARSITY = 0.95
RESNET_WIDTH = 8
"""Channels of its first stage: an eighth of ResNet-18's, so that a sweep of it takes minutes."""

NETWORKS: dict[str, Callable[[], ModelProto]] = {
    "lenet5": lambda: lenet5(FIRST_SPARSITY, seed=0),
    "alexnet": lambda: alexnet_cifar10(FIRST_SPARSITY, seed=0),
    "resnet": lambda: resnet18(FIRST_SPARSITY, seed=0, width=RESNET_WIDTH),
}


def write_sweep(folder: Path, name: str, steps: int) -> list[Path]:
    """The checkpoints of a network, in the order of the sweep; of a longer sweep, the first ones are the same."""
    model = NETWORKS[name]()
    paths = []
    for step in range(steps):
        if step:
            prune_half(model, step)
        paths.append(folder / f"{name}-{step:02}.onnx")
        write_network(paths[-1], model)
    return paths


def prune_half(model: ModelProto, step: int) -> None:
    """Prunes every other layer to the sparsity of this step: the odd ones in odd steps, the even ones in even steps."""
    from onnx import numpy_helper

    sparsity = FIRST_SPARSITY + (LAST_SPARSITY - FIRST_SPARSITY) * step / STEPS
    kernels = [tensor for tensor in model.graph.initializer if tensor.name.endswith(".weight")]
    for tensor in kernels[step % 2 :: 2]:
        pruned = prune(numpy_helper.to_array(tensor), sparsity)
        tensor.CopyFrom(numpy_helper.from_array(pruned, tensor.name))
