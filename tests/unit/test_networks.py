"""Networks: the papers' shapes, exact sparsity, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.checkpoint import read_checkpoint
from codegen.networks import (
    TEN_OPERATORS,
    alexnet_cifar10,
    lenet5,
    operator_network,
    prune,
    small_resnet,
    write_network,
)
from codegen.spec import Clip, Conv2d

TABLE = {  # method.md: output height and width, C, K, R, padding, parameters, millions of operations at N = 64
    "lenet-conv1": (24, 1, 20, 5, 0, 500, 36.8),
    "lenet-conv2": (8, 20, 50, 5, 0, 25_000, 204.8),
    "alexnet-conv1": (32, 3, 32, 5, 2, 2_400, 314.5),
    "alexnet-conv2": (16, 32, 32, 5, 2, 25_600, 838.8),
    "alexnet-conv3": (8, 32, 64, 5, 2, 51_200, 419.4),
    "resnet-conv1": (56, 64, 64, 3, 1, 36_864, 14_797.5),
    "resnet-conv2": (28, 128, 128, 3, 1, 147_456, 14_797.5),
    "vgg-conv1": (224, 3, 64, 3, 1, 1_728, 11_098.1),
    "vgg-conv2": (224, 64, 64, 3, 1, 36_864, 236_760.1),
    "vgg-conv3": (112, 64, 128, 3, 1, 73_728, 118_380),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_ten_operators_are_those_of_the_paper(name: str) -> None:
    size, channels, kernels, extent, padding, parameters, operations = TABLE[name]
    spec = TEN_OPERATORS[name]
    assert (spec.output_height, spec.output_width, spec.channels, spec.kernels) == (size, size, channels, kernels)
    assert (spec.kernel_height, spec.kernel_width, spec.padding) == (extent, extent, (padding,) * 4)
    assert spec.weights_count == parameters
    assert 2 * 64 * size * size * parameters / 1e6 == pytest.approx(operations, rel=0.002)


def test_there_are_ten_operators() -> None:
    assert list(TEN_OPERATORS) == list(TABLE)


@given(st.integers(1, 200), st.floats(0, 1), st.integers(0, 10))
def test_pruning_leaves_the_largest_magnitudes_and_an_exact_number_of_zeros(
    size: int, sparsity: float, seed: int
) -> None:
    weights = np.random.default_rng(seed).integers(1, 6, size).astype(np.float32) * np.float32(-1) ** np.arange(size)
    weights = weights.astype(np.float32).reshape(1, size)
    before = weights.copy()
    pruned = prune(weights, sparsity)
    zeros = pruned == 0
    assert np.count_nonzero(zeros) == round(sparsity * size)
    np.testing.assert_array_equal(pruned[~zeros], weights[~zeros])
    np.testing.assert_array_equal(weights, before)
    if zeros.any() and not zeros.all():
        assert np.abs(weights[zeros]).max() <= np.abs(weights[~zeros]).min()


def test_among_equal_magnitudes_the_first_are_pruned() -> None:
    weights = np.array([3, -1, 2, 1, -2] * 200, np.float32)
    expected = weights.copy()
    expected[np.abs(weights) == 1] = 0
    expected[np.flatnonzero(np.abs(weights) == 2)[:100]] = 0
    np.testing.assert_array_equal(prune(weights, 0.5), expected)


@pytest.mark.parametrize("sparsity", [-0.1, 1.1, float("nan")])
def test_a_sparsity_that_is_no_share_is_an_error(sparsity: float) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        prune(np.ones(3, np.float32), sparsity)


NETWORKS: dict[str, tuple[Callable[[float, int], onnx.ModelProto], tuple[int, ...], int]] = {
    "lenet5": (lenet5, (1, 28, 28), 10),
    "alexnet_cifar10": (alexnet_cifar10, (3, 32, 32), 10),
    "small_resnet": (small_resnet, (3, 224, 224), 1000),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_runs_for_any_batch(name: str) -> None:
    build, input_shape, classes = NETWORKS[name]
    model = build(0.9, 0)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for batch in (1, 2):
        (output,) = session.run(None, {"input": np.ones((batch, *input_shape), np.float32)})
        assert output.shape == (batch, classes)
        assert np.isfinite(output).all()


@pytest.mark.parametrize(
    ("build", "operators"),
    [(lenet5, ["lenet-conv1", "lenet-conv2"]), (alexnet_cifar10, ["alexnet-conv1", "alexnet-conv2", "alexnet-conv3"])],
)
def test_the_convolutions_of_a_network_are_the_papers_operators(
    build: Callable[[float, int], onnx.ModelProto], operators: list[str], tmp_path: Path
) -> None:
    write_network(tmp_path / "net.onnx", build(0.9, 0))
    layers = read_checkpoint(tmp_path / "net.onnx").layers
    convolutions = [layer.spec for layer in layers if isinstance(layer.spec, Conv2d)]
    assert [replace(spec, epilogue=()) for spec in convolutions] == [TEN_OPERATORS[name] for name in operators]
    assert [layer.weights.sparsity for layer in layers] == pytest.approx([0.9] * len(layers))


def test_the_resnet_has_20_convolutions_with_strides_and_shortcuts(tmp_path: Path) -> None:
    write_network(tmp_path / "net.onnx", small_resnet(0.9, 0))
    layers = read_checkpoint(tmp_path / "net.onnx").layers
    specs = [replace(layer.spec, epilogue=()) for layer in layers if isinstance(layer.spec, Conv2d)]
    assert len(specs) == 20
    assert sum(bool(layer.residual) for layer in layers) == 8
    assert specs[0] == Conv2d(3, 224, 224, 64, 7, 7, (2, 2), (3, 3, 3, 3))
    assert specs.count(TEN_OPERATORS["resnet-conv1"]) == 4
    assert [spec.input_shape for spec in specs if spec.kernel_height == 1] == [
        (64, 56, 56),
        (128, 28, 28),
        (256, 14, 14),
    ]
    assert specs[-1].output_shape == (512, 7, 7)


@pytest.mark.parametrize("sparsity", [0, 0.5, 1])
def test_an_operator_network_is_that_operator(sparsity: float, tmp_path: Path) -> None:
    spec = Conv2d(5, 9, 7, 4, 3, 2, (2, 1), (1, 0, 2, 1))
    write_network(tmp_path / "net.onnx", operator_network(spec, sparsity, 3))
    (layer,) = read_checkpoint(tmp_path / "net.onnx").layers
    assert (layer.spec, layer.weights.sparsity) == (replace(spec, epilogue=(Clip(low=0.0),)), sparsity)
    assert layer.weights.bias.all()


def test_a_network_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    first, again, other = (lenet5(0.9, seed).SerializeToString(deterministic=True) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_network_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_network(tmp_path / "taken", lenet5(0.9, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
