"""Networks compared with their papers: sizes, parameters, operations, and exported nodes."""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import prod
from typing import Any

import onnx
import pytest

from codegen.ir.layer_spec import LayerSpec
from codegen.model_zoo import NETWORKS, TEN_OPERATORS, vgg16
from codegen.model_zoo.vgg16 import vgg16_classifier, vgg16_stages

TABLE = {  # Dong et al. (2020): output height and width, C, K, R, padding, parameters, 10^6 operations at N = 64
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
    assert (spec.output_height, spec.output_width, spec.channels, spec.output_channels) == (
        size,
        size,
        channels,
        kernels,
    )
    assert (spec.kernel_height, spec.kernel_width, spec.padding) == (extent, extent, (padding,) * 4)
    assert spec.weights_count == parameters
    assert 2 * 64 * size * size * parameters / 1e6 == pytest.approx(operations, rel=0.002)


def test_there_are_ten_operators() -> None:
    assert list(TEN_OPERATORS) == list(TABLE)


@cache
def network(name: str) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(NETWORKS[name](0.9, 0))


def parameters(model: onnx.ModelProto) -> int:
    """Number of trained parameters, without running statistics."""
    return sum(prod(each.dims) for each in model.graph.initializer if "running" not in each.name)


def multiply_adds(model: onnx.ModelProto) -> int:
    """Multiply-adds of convolutions and fully connected layers per image."""
    values = (*model.graph.value_info, *model.graph.output)
    shapes = {value.name: [each.dim_value for each in value.type.tensor_type.shape.dim] for value in values}
    weights = {each.name: prod(each.dims) for each in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm")]
    return sum(weights[node.input[1]] * prod(shapes[node.output[0]][2:]) for node in nodes)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("lenet5", 431_080),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("mobilenet_v2", 3_504_872),
        ("densenet121", 7_978_856),
        ("efficientnet_b0", 5_288_548),
    ],
)
def test_a_network_has_the_published_number_of_parameters(name: str, published: int) -> None:
    assert parameters(network(name)) == published


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet18", 1.814e9),
        ("resnet34", 3.664e9),
        ("resnet50", 4.09e9),
        ("mobilenet_v2", 0.301e9),
        ("densenet121", 2.834e9),
        ("efficientnet_b0", 0.386e9),
    ],
)
def test_a_network_has_the_published_number_of_multiply_adds(name: str, published: float) -> None:
    assert multiply_adds(network(name)) == pytest.approx(published, rel=0.003)


def test_vgg16_has_the_published_numbers_of_parameters_and_multiply_adds() -> None:
    convolutions, linears = [spec for stage in vgg16_stages() for spec in stage], vgg16_classifier()
    assert len(convolutions) == 13
    specs: list[LayerSpec] = [*convolutions, *linears]
    assert sum(spec.weights_count + spec.output_channels for spec in specs) == 138_357_544
    operations = sum(spec.weights_count * spec.output_height * spec.output_width for spec in convolutions)
    assert operations + sum(spec.weights_count for spec in linears) == pytest.approx(15.47e9, rel=0.003)


def test_the_layers_of_vgg16_are_among_the_ten_operators() -> None:
    first, second = vgg16_stages()[:2]
    assert [*first, second[0]] == [TEN_OPERATORS[f"vgg-conv{number}"] for number in (1, 2, 3)]


def test_the_graph_of_vgg16_has_its_tables_weights() -> None:
    specs = [*(spec for stage in vgg16_stages(4) for spec in stage), *vgg16_classifier(4)]
    shapes = {each.name: tuple(each.dims) for each in vgg16(0.9, 0, width=4).graph.initializer}
    assert [shape for name, shape in shapes.items() if name.endswith(".weight")] == [
        spec.weights_shape for spec in specs
    ]


NODES = {
    "resnet18": {"Conv": 20, "BatchNormalization": 20, "Relu": 17, "Add": 8, "MaxPool": 1, "Gemm": 1}
    | {"GlobalAveragePool": 1, "Flatten": 1},
    "resnet34": {"Conv": 36, "BatchNormalization": 36, "Relu": 33, "Add": 16, "MaxPool": 1, "Gemm": 1}
    | {"GlobalAveragePool": 1, "Flatten": 1},
    "resnet50": {"Conv": 53, "BatchNormalization": 53, "Relu": 49, "Add": 16, "MaxPool": 1, "Gemm": 1}
    | {"GlobalAveragePool": 1, "Flatten": 1},
    "mobilenet_v2": {"Conv": 52, "BatchNormalization": 52, "Clip": 35, "Constant": 70, "Add": 10, "Gemm": 1}
    | {"GlobalAveragePool": 1, "Flatten": 1},
    "densenet121": {"Conv": 120, "BatchNormalization": 121, "Relu": 121, "Concat": 58, "MaxPool": 1, "AveragePool": 3}
    | {"GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1},
    "efficientnet_b0": {"Conv": 81, "BatchNormalization": 49, "Sigmoid": 65, "Mul": 65, "Add": 9}
    | {"GlobalAveragePool": 17, "Flatten": 1, "Gemm": 1},
    "unet": {"Conv": 19, "BatchNormalization": 18, "LeakyRelu": 10, "Relu": 8, "MaxPool": 4, "Concat": 4}
    | {"ConvTranspose": 4, "Sigmoid": 1},
    "mlp": {"Flatten": 1, "MatMul": 3, "Add": 3, "Relu": 3, "Gemm": 1},
    "feed_forward": {"MatMul": 2, "Add": 3, "Relu": 1},
}


@pytest.mark.parametrize("name", NODES)
def test_a_network_has_the_nodes_of_an_unfolded_export(name: str) -> None:
    assert Counter(node.op_type for node in network(name).graph.node) == NODES[name]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def test_resnet50_has_the_stride_of_a_block_in_its_3x3_convolution() -> None:
    convolutions = [node for node in network("resnet50").graph.node if node.op_type == "Conv"]
    strided = [node.name for node in convolutions if attributes(node)["strides"] == [2, 2]]
    blocks = [f"layer{stage}.0.{conv}" for stage in (2, 3, 4) for conv in ("conv2", "downsample.0")]
    assert strided == ["conv1", *blocks]
    assert {tuple(attributes(node)["kernel_shape"]) for node in convolutions if ".conv2" in node.name} == {(3, 3)}


def test_every_normalisation_reads_a_convolution() -> None:
    for name in ("resnet50", "mobilenet_v2", "unet"):
        producers = {node.output[0]: node.op_type for node in network(name).graph.node}
        norms = [node for node in network(name).graph.node if node.op_type == "BatchNormalization"]
        assert {producers[node.input[0]] for node in norms} == {"Conv"}


def test_mobilenet_v2_has_17_depthwise_convolutions() -> None:
    nodes = [node for node in network("mobilenet_v2").graph.node if "depthwise.conv" in node.name]
    shapes = {each.name: tuple(each.dims) for each in network("mobilenet_v2").graph.initializer}
    assert [shapes[node.input[1]] for node in nodes] == [(attributes(node)["group"], 1, 3, 3) for node in nodes]
    assert len(nodes) == 17


def test_efficientnet_b0_gates_its_depthwise_layers_of_3x3_and_5x5() -> None:
    graph = network("efficientnet_b0").graph
    shapes = {each.name: tuple(each.dims) for each in graph.initializer}
    nodes = [node for node in graph.node if "depthwise.conv" in node.name]
    assert Counter(shapes[node.input[1]][2:] for node in nodes) == {(3, 3): 7, (5, 5): 9}
    assert [shapes[node.input[1]][0] for node in nodes] == [attributes(node)["group"] for node in nodes]
    gates = [node.input[0] for node in graph.node if node.name.endswith("gate.scale")]
    makers = {node.output[0]: node for node in graph.node}
    assert [makers[name].op_type for name in gates] == ["Sigmoid"] * len(nodes)


def test_a_dense_layer_reads_all_before_it_in_its_block() -> None:
    concats = [node for node in network("densenet121").graph.node if node.op_type == "Concat"]
    assert [len(node.input) for node in concats] == [n for layers in (6, 12, 24, 16) for n in range(2, layers + 2)]
    shapes = {each.name: tuple(each.dims) for each in network("densenet121").graph.initializer}
    inputs = [shapes[f"block4.layer{number}.conv1.weight"][1] for number in range(1, 17)]
    assert inputs == list(range(512, 1024, 32))


def test_relu6_is_a_clip_from_0_to_6() -> None:
    graph = network("mobilenet_v2").graph
    constants = {
        node.output[0]: onnx.numpy_helper.to_array(node.attribute[0].t)
        for node in graph.node
        if node.op_type == "Constant"
    }
    bounds = {tuple(float(constants[name]) for name in node.input[1:]) for node in graph.node if node.op_type == "Clip"}
    assert bounds == {(0.0, 6.0)}


def test_the_unet_joins_skips_and_upsampled_images_of_equal_shape() -> None:
    graph = network("unet").graph
    shapes = {
        value.name: [each.dim_value for each in value.type.tensor_type.shape.dim[1:]] for value in graph.value_info
    }
    joined = [[shapes[name] for name in node.input] for node in graph.node if node.op_type == "Concat"]
    assert joined == [[[width, size, size]] * 2 for width, size in ((256, 16), (128, 32), (64, 64), (32, 128))]
