"""Compiled layers in a model of one's own: the kernels played by the reference, export and reading real."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch import nn

from codegen.errors import DeviceError
from farm.errors import UsageError
from farm.torch.swap import swap, swapped
from tests.torch.swapping import bundled, called, exported, swapped_net


class Block(nn.Module):
    """Two convolutions with a shortcut, as in a ResNet: one activation, in place, used twice."""

    def __init__(self, channels: int, kernels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, kernels, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(kernels)
        self.conv2 = nn.Conv2d(kernels, kernels, 3, padding=1, groups=2)
        self.bn2 = nn.BatchNorm2d(kernels)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(channels, kernels, 1, stride=2, bias=False), nn.BatchNorm2d(kernels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.down(x)
        return self.relu(out)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=(1, 0)), nn.LeakyReLU(0.2))
        self.block = Block(8, 12)
        self.up = nn.ConvTranspose2d(12, 6, 2, stride=2)
        self.head = nn.Sequential(nn.Linear(6, 10), nn.SiLU(), nn.Dropout(0.5), nn.Linear(10, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.hardswish(self.up(self.block(self.stem(x))))
        return self.head(x.mean((2, 3)))


LAYERS = ["stem.0", "block.conv1", "block.conv2", "block.down.0", "up", "head.0", "head.3"]


def made(seed: int = 0) -> Net:
    """Network whose running statistics are not the initial ones."""
    torch.manual_seed(seed)
    net = Net()
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                    tensor.copy_(torch.rand_like(tensor) + 0.5)
    return net.eval()


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_layers_go_in_the_place_of_modules_with_what_is_folded_into_them(tmp_path: Path, exporter: str) -> None:
    net = made()
    x = torch.rand(3, 3, 12, 13)
    before = copy.deepcopy(net.state_dict())
    found = swapped_net(net, tmp_path, exporter)
    assert sorted(found.replaced.values()) == sorted(LAYERS)
    assert found.left == {}
    assert called(found) == ["head.2"]  # the dropout; neither normalisations nor activations are computed twice
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), net(x), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_layers_go_in_the_place_of_modules_of_float16(tmp_path: Path, exporter: str) -> None:
    """Exporters fold normalisations in the model's own type."""
    net = made().half()
    x = torch.rand(3, 3, 12, 13).half()
    found = swapped_net(net, tmp_path, exporter)
    assert sorted(found.replaced.values()) == sorted(LAYERS)
    assert found.left == {}
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), net(x), rtol=0.02, atol=0.02)


def test_a_bundle_of_other_weights_is_refused(tmp_path: Path) -> None:
    bundle, compute = bundled(exported(made(), tmp_path / "net.onnx", "torchscript"))
    with pytest.raises(UsageError, match=r"no module of the model has the weights of .* and 4 more"):
        swapped(made(seed=1), bundle, compute)
    trained = made()
    with torch.no_grad():
        trained.head[3].weight[0, 0] += 1
    with pytest.raises(UsageError, match=r"the weights of \S*head\S* in .*: export and compile the model as it is now"):
        swapped(trained, bundle, compute)
    found = swapped(trained, bundle, compute, strict=False)
    assert found.left == {"head.3": "the bundle has no layer with its weights"}
    x = torch.rand(2, 3, 12, 13)
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), trained(x), rtol=1e-4, atol=1e-5)


def test_a_module_whose_layer_has_the_normalisation_before_it_is_left(tmp_path: Path) -> None:
    net = nn.Sequential(
        nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)
    ).eval()
    found = swapped_net(net, tmp_path)
    assert list(found.replaced.values()) == ["5"]
    assert found.left == {"2": "the bundle has no layer with its weights"}
    x = torch.randn(2, 3, 12, 13)
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), net(x), rtol=1e-4, atol=1e-5)


class Gated(nn.Module):  # type: ignore[misc]
    """A projection of what a squeeze-and-excitation block weighs."""

    def __init__(self) -> None:
        super().__init__()
        self.excite = nn.Conv2d(3, 3, 1)
        self.project = nn.Conv2d(3, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(x * torch.sigmoid(self.excite(x.mean((2, 3), keepdim=True))))


def test_a_module_whose_layer_multiplies_by_gates_is_left(tmp_path: Path) -> None:
    net = Gated().eval()
    found = swapped_net(net, tmp_path)
    assert list(found.replaced.values()) == ["excite"]
    assert "multiplies its input by gates too" in found.left["project"]
    x = torch.randn(2, 3, 12, 13)
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), net(x), rtol=1e-4, atol=1e-5)


def test_what_the_model_computes_otherwise_is_left(tmp_path: Path) -> None:
    net = made()
    bundle, compute = bundled(exported(net, tmp_path / "net.onnx", "torchscript"))
    net.head[1] = nn.GELU()
    net.up.stride = (1, 1)
    net.stem[1].negative_slope = 0.3
    found = swapped(net, bundle, compute)
    assert sorted(found.left) == ["head.0", "stem.0", "up"]
    assert "computes Swish next, but the model computes head.1" in found.left["head.0"]
    assert "computes LeakyRelu next, but the model computes stem.1" in found.left["stem.0"]
    assert "has stride (2, 2), the module (1, 1)" in found.left["up"]
    x = torch.rand(2, 3, 12, 13)
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), net(x), rtol=1e-4, atol=1e-5)


class Changing(nn.Module):
    """Changes the input of a convolution before it adds up."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        y = self.conv(x)
        x.mul_(2.0)
        return y + x


def test_a_layer_never_reads_what_was_changed_in_place(tmp_path: Path) -> None:
    net = Changing().eval()
    found = swapped_net(net, tmp_path)
    assert "which the model changes in place before the layer's end" in found.left["conv"]
    x = torch.rand(2, 3, 12, 13)
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x.clone()), net(x.clone()), rtol=1e-4, atol=1e-5)


class Adding(nn.Module):
    """Adds a convolution into its own input, and reads that again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return x.add_(self.conv(x)) + x


def test_a_layer_never_keeps_a_sum_from_what_it_is_added_into(tmp_path: Path) -> None:
    net = Adding().eval()
    found = swapped_net(net, tmp_path, strict=False)
    assert "the model reads it later" in found.left["conv"]
    x = torch.rand(2, 3, 12, 13)
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), net(x), rtol=1e-4, atol=1e-5)


def test_one_slope_of_a_module_is_that_of_a_layer(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.PReLU(), nn.Conv2d(8, 8, 1), nn.PReLU(8)).eval()
    x = torch.rand(2, 3, 12, 13)
    found = swapped_net(net, tmp_path)
    assert called(found) == ["3"]
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), net(x), rtol=1e-4, atol=1e-5)


class Identity(nn.Module):
    """Two blocks whose shortcuts have no weights: what one layer gives, a later one adds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.second = nn.Conv2d(8, 8, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(self.first(x) + x)
        return self.relu(x + self.second(input=x))


def test_a_layer_adds_what_another_layer_gives(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Identity().eval()
    x = torch.rand(2, 3, 12, 13)
    found = swapped_net(net, tmp_path)
    assert sorted(found.replaced.values()) == ["first.0", "first.2", "second", "stem"]
    assert called(found) == []
    found.module.graph.lint()
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), net(x), rtol=1e-4, atol=1e-5)


class Shared(nn.Module):
    """One module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(torch.relu(self.conv(x)))


def test_a_module_that_is_called_twice_is_two_layers(tmp_path: Path) -> None:
    net = Shared().eval()
    found = swapped_net(net, tmp_path)
    assert list(found.replaced.values()) == ["conv", "conv"]
    assert called(found) == []
    x = torch.rand(2, 3, 12, 13)
    with torch.inference_mode():
        torch.testing.assert_close(found.module(x), net(x), rtol=1e-4, atol=1e-5)


class Deciding(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_models_that_train_or_that_cannot_be_traced_are_refused_in_words(tmp_path: Path) -> None:
    bundle, compute = bundled(exported(made(), tmp_path / "net.onnx", "torchscript"))
    with pytest.raises(UsageError, match=r"in training mode, .*: call its eval\(\) first"):
        swapped(made().train(), bundle, compute)
    with pytest.raises(UsageError, match=r"torch\.fx cannot trace the model \(.*\): farm\.torch\.load runs"):
        swapped(Deciding().eval(), bundle, compute)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_swapping_says_so(tmp_path: Path) -> None:
    bundle, _ = bundled(exported(made(), tmp_path / "net.onnx", "torchscript"))
    with pytest.raises(DeviceError, match="GPUs only, and PyTorch finds none"):
        swap(made(), bundle.path)
