"""Transformer encoders as PyTorch's two exporters write them: every projection is compiled with its bias."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from codegen.frontend.onnx.export.segments import LayerCall, segmented
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import AddResidual, Gelu
from codegen.verification.reference import layer_output
from farm.bench.networks.torch_timing import dense_network
from farm.runtime.hybrid import Segments

WIDTH, HEADS, ROWS = 16, 2, 6
PROJECTIONS = (1 + 1 + 2) + (3 + 1 + 2) + (1 + 1)
"""Linear layers of two blocks and PyTorch's attention: query, key and value are three layers in the second block."""
ATTENTIONS = 3


class Block(nn.Module):
    """An encoder block with the normalisation first."""

    def __init__(self, *, joined: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inputs = nn.ModuleList(
            [nn.Linear(WIDTH, 3 * WIDTH)] if joined else [nn.Linear(WIDTH, WIDTH) for _ in "qkv"]
        )
        self.output = nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images, rows, width = x.shape
        normal = self.first(x)
        parts = torch.cat([each(normal) for each in self.inputs], -1).reshape(images, rows, 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=len(self.inputs) == 3)
        x = x + self.output(seen.transpose(1, 2).reshape(images, rows, width))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


class Encoder(nn.Module):
    """A token of the class before the rows, blocks, and PyTorch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.blocks = nn.Sequential(Block(joined=True), Block(joined=False))
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)
        nn.init.normal_(self.attention.out_proj.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))
        seen, _ = self.attention(x, x, x, need_weights=False)
        return x + seen


@pytest.fixture(params=["legacy", "dynamo", "with Attention"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = Encoder().eval()
    for module in network.modules():
        for name in ("weight", "in_proj_weight"):
            if isinstance(module, nn.Linear | nn.MultiheadAttention) and hasattr(module, name):
                prune.l1_unstructured(module, name, 0.7)
                prune.remove(module, name)
    path, x = tmp_path / "encoder.onnx", torch.randn(2, ROWS, WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if request.param == "legacy":
            torch.onnx.export(network, (x,), path, input_names=["x"], dynamic_axes={"x": {0: "N"}}, dynamo=False)
        else:
            newest = {"opset_version": 23} if request.param == "with Attention" else {}
            torch.onnx.export(network, (x,), path, dynamic_shapes=({0: torch.export.Dim("N")},), dynamo=True, **newest)
    return path


def test_every_projection_is_compiled_with_its_bias_and_what_follows(path: Path) -> None:
    checkpoint = read_checkpoint(path)
    assert len(checkpoint.layers) == PROJECTIONS
    assert checkpoint.skipped == ()
    [note] = checkpoint.notes
    assert note.startswith(f"{2 * ATTENTIONS} products of activations, as of attention, are left to PyTorch")
    assert all(layer.rows == 1 + ROWS and layer.weights.bias.any() for layer in checkpoint.layers)
    steps = Counter(type(step) for layer in checkpoint.layers for step in layer.spec.epilogue)
    assert steps == {Gelu: 2, AddResidual: 4}


def test_the_layers_and_what_is_between_them_compute_what_onnxruntime_does(path: Path) -> None:
    checkpoint = read_checkpoint(path)
    assert checkpoint.residual_graph is not None
    layers = {layer.name: layer for layer in checkpoint.layers}

    def compute(call: LayerCall, given: Sequence[NDArray[Any]]) -> NDArray[Any]:
        layer, (x, *residual) = layers[call.layer], given
        return layer_output(layer.spec, layer.weights, x, residual=residual[0] if residual else None).astype(np.float32)

    network = segmented(checkpoint.residual_graph.with_layers(checkpoint.layers))
    x = np.random.default_rng(0).standard_normal((3, ROWS, WIDTH), np.float32)
    [found] = Segments(network, {name: layer.spec for name, layer in layers.items()}).run([x], compute)
    with torch.inference_mode():
        in_torch = dense_network(checkpoint, list(layers))(torch.from_numpy(x))
    session = onnxruntime.InferenceSession(str(path))
    [expected] = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(in_torch.numpy(), expected, rtol=1e-4, atol=1e-5)
