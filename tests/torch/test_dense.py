"""Dense networks with folded weights: what compiled ones are measured against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Layer, Weights
from codegen.ir.layer_spec import (
    AddResidual,
    Clip,
    Conv2d,
    ConvTranspose2d,
    Gelu,
    HardSigmoid,
    HardSwish,
    LayerSpec,
    LeakyRelu,
    Linear,
    MaxPool,
    Mish,
    Quantize,
    Scale,
    Sigmoid,
    Step,
    Swish,
    Tanh,
)
from codegen.model_zoo import NETWORKS, write_network
from codegen.verification.reference import layer_output
from farm.bench.networks.torch_dense import DenseLayer
from farm.bench.networks.torch_timing import dense_network

STEPS: list[Step] = [
    Clip(low=0),
    Clip(-1, 1),
    LeakyRelu(0.1),
    AddResidual(),
    Sigmoid(),
    HardSigmoid(0.2, 0.5),
    HardSwish(1 / 6, 0.5),
    Swish(),
    Swish(1.7),
    Gelu(),
    Gelu("tanh"),
    Tanh(),
    Mish(),
    Scale(-1.5, 0.25),
    Quantize(0.0625, -100, 155),
    MaxPool(),
    MaxPool(3, (1, 0, 0, 1)),
]
SPECS: list[LayerSpec] = [
    Conv2d(4, 7, 9, 6, 3, 3, (2, 1), (1, 0, 2, 1), (1, 2), groups=2),
    ConvTranspose2d(4, 5, 6, 6, 3, 2, (2, 3), (1, 0, 0, 1), groups=2, output_padding=(1, 0)),
    Linear(12, 5),
    *(Conv2d(3, 6, 6, 4, 3, 3, padding=(1, 1, 1, 1), epilogue=(step,)) for step in STEPS),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_dense_layer_computes_what_the_kernels_do(spec: LayerSpec) -> None:
    random = np.random.default_rng(0)
    weights = Weights(
        random.standard_normal(spec.weights_shape, np.float32), random.standard_normal(spec.output_channels, np.float32)
    )
    layer = Layer("layer", spec, weights, "x", "y")
    x = random.standard_normal((2, *spec.input_shape), np.float32)
    added = random.standard_normal((2, *spec.output_shape), np.float32) if AddResidual() in spec.epilogue else None
    found = DenseLayer(layer)(torch.from_numpy(x), None if added is None else torch.from_numpy(added))
    expected = layer_output(spec, weights, x, residual=added)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["alexnet_cifar10", "lenet5"])
def test_a_dense_network_computes_what_its_model_does(name: str, tmp_path: Path) -> None:
    write_network(tmp_path / "net.onnx", NETWORKS[name](0.9, 0))
    checkpoint = read_checkpoint(tmp_path / "net.onnx")
    shape = (3, 32, 32) if name == "alexnet_cifar10" else (1, 28, 28)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, *shape), np.float32))
    folded = dense_network(checkpoint, [layer.name for layer in checkpoint.layers])
    assert not [node for node in folded.graph.nodes if node.target is torch.ops.farm.layer.default]
    with torch.inference_mode():
        torch.testing.assert_close(folded(x), dense_network(checkpoint, [])(x), rtol=1e-4, atol=1e-4)
        half = folded.half().to(memory_format=torch.channels_last)(x.half().to(memory_format=torch.channels_last))
        assert half.dtype is torch.float16
