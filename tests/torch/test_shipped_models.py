"""Shipped models as PyTorch modules: the compiled layers played by the reference, the rest in PyTorch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.onnx.reader import read_checkpoint
from farm.bundle.reader import BundledLayer
from farm.torch.module import module_of
from tests.real_models.shipped import MODELS
from tests.real_models.wheels import assert_decisions_agree, pruned
from tests.torch.test_networks import played


@pytest.mark.parametrize("name", MODELS)
def test_a_pruned_model_decides_in_pytorch_as_in_onnxruntime(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if not request.config.getoption("--install"):
        pytest.skip("downloads models: make test-models")
    shipped = MODELS[name]
    path, arrays = pruned(shipped, "0.95 between dense ends", tmp_path), shipped.inputs()
    checkpoint = read_checkpoint(path, {each: array.shape for each, array in arrays.items()}, shipped.values)
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    bundled = {each.name: BundledLayer(each.name, each.spec, bool(each.residual), ()) for each in checkpoint.layers}
    module = module_of(network, bundled, {each.name: partial(played, each) for each in checkpoint.layers})
    with torch.inference_mode():
        made = module(*(torch.from_numpy(arrays[each.name]) for each in network.inputs))
    outputs = [each.numpy() for each in (made if isinstance(made, tuple) else (made,))]
    assert_decisions_agree(shipped, path, outputs)
