"""Pools of a model of one's own, which kernels of the layers before them compute."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch import fx, nn

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import MaxPool, Step
from farm.bundle.reader import Bundle
from farm.torch.modules import step_of
from farm.torch.swap import swapped
from tests.torch.bundles import as_compiled, whole_bundle
from tests.torch.swapping import called, exported
from tests.torch.test_networks import played


class Pooling(nn.Module):
    """Convolutions before pools of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(channels, 6, 3, padding=1) for channels in (3, 6, 6))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.convs
        x = self.pool(nn.functional.relu(first(x)))
        x = nn.functional.max_pool2d(second(x).relu(), 2, stride=(2, 2))
        return nn.functional.max_pool2d(third(x).relu(), 3, 2, 1)


def test_a_layer_takes_the_place_of_the_pool_that_its_kernel_computes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Pooling().eval()
    x = torch.rand(3, 3, 12, 13)
    checkpoint = read_checkpoint(exported(net, tmp_path / "net.onnx", "torchscript"))
    bundle = Bundle(whole_bundle(tmp_path / "bundle", checkpoint, batch=64))
    assert [MaxPool() in layer.spec.epilogue for layer in bundle.layers.values()] == [True, True, False]
    layers = as_compiled(bundle, checkpoint)
    found = swapped(net, bundle, {layer.name: partial(played, layer) for layer in layers})
    assert (len(found.replaced), found.left, called(found)) == (3, {}, [])
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (nn.MaxPool2d(2), MaxPool()),
        (nn.MaxPool2d((2, 2), stride=[2, 2]), MaxPool()),
        (nn.MaxPool2d(3, 2, 1), MaxPool(3, (1, 1, 1, 1))),
        (nn.MaxPool2d(3, (2, 2), (0, 1)), MaxPool(3, (0, 1, 0, 1))),
        (nn.MaxPool2d(3, (2,), (1,)), MaxPool(3, (1, 1, 1, 1))),
        (nn.MaxPool2d(3, 2, 1, ceil_mode=True), None),
        (nn.MaxPool2d(3), None),
        (nn.MaxPool2d((3, 2), 2), None),
        (nn.MaxPool2d(2, padding=1), None),
    ],
    ids=str,
)
def test_a_pool_of_a_model_is_the_step_of_a_kernel_that_computes_the_same(module: nn.Module, step: Step | None) -> None:
    traced = fx.symbolic_trace(nn.Sequential(module))
    [node] = [node for node in traced.graph.nodes if node.op == "call_module"]
    assert step_of(node, dict(traced.named_modules())) == step
