"""Networks of the zoo: valid, of the requested sparsity, with live signals to the last layer, deterministic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import Conv2d
from codegen.model_zoo import (
    NETWORKS,
    TEN_OPERATORS,
    alexnet_cifar10,
    lenet5,
    mlp,
    operator_network,
    resnet18,
    unet,
    vgg16,
    write_network,
)

SPARSITY = 0.9

SHAPES = {
    "lenet5": ((1, 28, 28), (10,)),
    "alexnet_cifar10": ((3, 32, 32), (10,)),
    "resnet18": ((3, 224, 224), (1000,)),
    "resnet34": ((3, 224, 224), (1000,)),
    "resnet50": ((3, 224, 224), (1000,)),
    "vgg16": ((3, 224, 224), (1000,)),
    "mobilenet_v2": ((3, 224, 224), (1000,)),
    "densenet121": ((3, 224, 224), (1000,)),
    "efficientnet_b0": ((3, 224, 224), (1000,)),
    "unet": ((3, 128, 128), (2, 128, 128)),
    "mlp": ((1, 28, 28), (10,)),
    "feed_forward": ((16, 256), (16, 256)),
}
"""Shapes of one image: input and output."""

FAST = NETWORKS | {"vgg16": partial(vgg16, width=4)}
"""All of VGG-16's weights take seconds and gigabytes."""


@cache
def network(name: str) -> onnx.ModelProto:
    return FAST[name](SPARSITY, 0)


@cache
def session(name: str) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(network(name).SerializeToString())


def images(name: str, batch: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((batch, *SHAPES[name][0]), np.float32)


def convolutions(path: Path) -> list[Layer]:
    """The convolutions of a checkpoint, without epilogues."""
    layers = read_checkpoint(path).layers
    return [replace(each, spec=replace(each.spec, epilogue=())) for each in layers if isinstance(each.spec, Conv2d)]


def test_every_network_has_a_shape_here() -> None:
    assert list(NETWORKS) == list(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_network_is_valid(name: str) -> None:
    onnx.checker.check_model(network(name), full_check=True)
    names = [node.name for node in network(name).graph.node]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", SHAPES)
def test_a_network_runs_for_any_batch(name: str) -> None:
    for batch in (1, 2):
        (output,) = session(name).run(None, {"input": images(name, batch)})
        assert output.shape == (batch, *SHAPES[name][1])
        assert np.isfinite(output).all()


@pytest.mark.parametrize("name", SHAPES)
def test_two_images_differ_at_the_end_of_a_sparse_network(name: str) -> None:
    (output,) = session(name).run(None, {"input": images(name, 2)})
    assert np.std(output[0] - output[1]) > 0.02


@pytest.mark.parametrize("name", ["resnet34", "resnet50", "mobilenet_v2", "densenet121", "efficientnet_b0", "unet"])
def test_activations_stay_small_in_a_deep_network_with_normalisation(name: str) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(network(name))
    inner = [node.output[0] for node in model.graph.node if node.op_type == "BatchNormalization"]
    model.graph.output.extend(onnx.ValueInfoProto(name=each) for each in inner)
    run = onnxruntime.InferenceSession(model.SerializeToString()).run(inner, {"input": images(name, 1)})
    deviations = [float(activation.std()) for activation in run]
    assert max(deviations) < 5
    assert min(deviations) > 0.05


@pytest.mark.parametrize("name", SHAPES)
def test_every_weight_tensor_is_as_sparse_as_asked_and_nothing_else_is(name: str) -> None:
    graph = network(name).graph
    layers = [node for node in graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    weights = {node.input[1] for node in layers}
    assert len(weights) == len(layers)
    for tensor in graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        zeros = round(SPARSITY * array.size) if tensor.name in weights else 0
        assert np.count_nonzero(array == 0) == zeros, tensor.name


@pytest.mark.parametrize("sparsity", [0, 0.9, 0.99])
def test_weights_have_hes_variance_whatever_their_sparsity(sparsity: float) -> None:
    tensors = {each.name: each for each in mlp(sparsity, 0).graph.initializer}
    weights = onnx.numpy_helper.to_array(tensors["fc1.weight"])
    assert np.square(weights).mean() * 784 == pytest.approx(2, rel=0.03)


def test_an_upsampled_image_has_the_variance_that_its_inputs_make() -> None:
    tensors = {each.name: each for each in unet(0, 0).graph.initializer}
    weights = onnx.numpy_helper.to_array(tensors["up4.up.weight"])
    assert weights.shape == (512, 256, 2, 2)
    assert np.square(weights).mean() * 512 == pytest.approx(2, rel=0.03)


def test_a_network_may_have_no_weights_left() -> None:
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in lenet5(1, 0).graph.initializer}
    assert not any(array.any() for name, array in arrays.items() if name.endswith("weight"))


@pytest.mark.parametrize("name", SHAPES)
def test_the_seed_determines_a_network(name: str) -> None:
    again, other = (FAST[name](SPARSITY, seed).SerializeToString(deterministic=True) for seed in (0, 1))
    first = network(name).SerializeToString(deterministic=True)
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("build", "operators"),
    [(lenet5, ["lenet-conv1", "lenet-conv2"]), (alexnet_cifar10, ["alexnet-conv1", "alexnet-conv2", "alexnet-conv3"])],
)
def test_the_convolutions_of_a_network_are_the_papers_operators(
    build: Callable[[float, int], onnx.ModelProto], operators: list[str], tmp_path: Path
) -> None:
    write_network(tmp_path / "net.onnx", build(0.9, 0))
    layers = convolutions(tmp_path / "net.onnx")
    assert [layer.spec for layer in layers] == [TEN_OPERATORS[name] for name in operators]
    assert [layer.weights.sparsity for layer in layers] == pytest.approx([0.9] * len(layers))


def test_resnet18_has_20_convolutions_with_strides_and_shortcuts(tmp_path: Path) -> None:
    write_network(tmp_path / "net.onnx", resnet18(0.9, 0))
    specs = [layer.spec for layer in convolutions(tmp_path / "net.onnx")]
    assert len(specs) == 20
    assert specs[0] == Conv2d(3, 224, 224, 64, 7, 7, (2, 2), (3, 3, 3, 3))
    assert specs.count(TEN_OPERATORS["resnet-conv1"]) == 4
    assert [spec.input_shape for spec in specs if isinstance(spec, Conv2d) and spec.kernel_height == 1] == [
        (64, 56, 56),
        (128, 28, 28),
        (256, 14, 14),
    ]
    assert specs[-1].output_shape == (512, 7, 7)


@pytest.mark.parametrize("sparsity", [0, 0.5, 1])
def test_an_operator_network_is_that_operator(sparsity: float, tmp_path: Path) -> None:
    spec = Conv2d(5, 9, 7, 4, 3, 2, (2, 1), (1, 0, 2, 1))
    write_network(tmp_path / "net.onnx", operator_network(spec, sparsity, 3))
    (layer,) = convolutions(tmp_path / "net.onnx")
    assert (layer.spec, layer.weights.sparsity) == (spec, sparsity)
    assert layer.weights.bias.all()


def test_an_operator_network_has_the_dilation_and_the_groups_of_its_spec() -> None:
    spec = Conv2d(4, 9, 8, 6, 3, 2, (2, 1), (1, 0, 2, 1), dilation=(2, 3), groups=2)
    model = operator_network(spec, 0, 0)
    run = onnxruntime.InferenceSession(model.SerializeToString())
    (output,) = run.run(None, {"input": np.ones((2, *spec.input_shape), np.float32)})
    assert output.shape == (2, *spec.output_shape)
    assert tuple(model.graph.initializer[0].dims) == spec.weights_shape


def test_a_network_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_network(tmp_path / "taken", lenet5(0.9, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
