"""ONNX reader: layers, names and digests of a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import Conv2d
from codegen.model_zoo import lenet5, write_network
from tests.unit.onnx_models import FLOAT, conv, conv_model, info, model, save, tensor, values

KERNEL = tensor("w", values(4, 3, 3, 3))


def test_a_convolution_becomes_a_layer_with_its_spec_weights_and_tensor_names(tmp_path: Path) -> None:
    kernel, bias = values(4, 3, 5, 3), values(4, seed=1)
    node = conv("first", ("x", "w", "b"), "y", strides=[2, 1], pads=[1, 0, 2, 1], kernel_shape=[5, 3])
    path = save(tmp_path, model([node], [tensor("w", kernel), tensor("b", bias)]), "net.onnx")
    checkpoint = read_checkpoint(path)
    assert (checkpoint.name, checkpoint.path, checkpoint.skipped) == ("net", str(path), ())
    (layer,) = checkpoint.layers
    assert (layer.name, layer.input, layer.output) == ("first", "x", "y")
    assert layer.spec == Conv2d(3, 8, 8, 4, 5, 3, stride=(2, 1), padding=(1, 0, 2, 1))
    np.testing.assert_array_equal(layer.weights.kernel, kernel)
    np.testing.assert_array_equal(layer.weights.bias, bias)


@pytest.mark.parametrize("inputs", [("x", "w"), ("x", "w", "")])
def test_a_missing_bias_is_zero(inputs: tuple[str, ...], tmp_path: Path) -> None:
    (layer,) = read_checkpoint(save(tmp_path, model([conv(inputs=inputs)], [KERNEL]))).layers
    np.testing.assert_array_equal(layer.weights.bias, np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("auto_pad", "padding"),
    [("VALID", (0, 0, 0, 0)), ("SAME_UPPER", (0, 1, 1, 2)), ("SAME_LOWER", (1, 2, 0, 1)), ("NOTSET", (0, 0, 0, 0))],
)
def test_auto_pad_is_resolved_to_numbers(auto_pad: str, padding: tuple[int, ...], tmp_path: Path) -> None:
    proto = conv_model(values(2, 3, 3, 4), auto_pad=auto_pad, strides=[2, 1])
    (layer,) = read_checkpoint(save(tmp_path, proto)).layers
    assert layer.spec.padding == padding


def numbers(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("raw", [True, False])
def test_an_initializer_is_read_from_bytes_and_from_a_list_of_numbers(raw: bool, tmp_path: Path) -> None:
    data = numbers(2, 3, 2, 2).tobytes() if raw else numbers(2, 3, 2, 2).ravel().tolist()
    proto = model([conv()], [helper.make_tensor("w", FLOAT, [2, 3, 2, 2], data, raw)])
    np.testing.assert_array_equal(read_checkpoint(save(tmp_path, proto)).layers[0].weights.kernel, numbers(2, 3, 2, 2))


def test_weights_in_constant_nodes_are_read(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=tensor("", numbers(2, 3, 2, 2))),
        helper.make_node("Constant", [], ["b"], value_floats=[1.0, 2.0]),
        conv(inputs=("x", "w", "b")),
    ]
    (layer,) = read_checkpoint(save(tmp_path, model(nodes))).layers
    np.testing.assert_array_equal(layer.weights.kernel, numbers(2, 3, 2, 2))
    np.testing.assert_array_equal(layer.weights.bias, [1, 2])


@pytest.mark.parametrize("coordinates", [True, False])
@pytest.mark.parametrize("in_a_node", [True, False])
def test_sparse_weights_are_read(coordinates: bool, in_a_node: bool, tmp_path: Path) -> None:
    kernel = np.zeros((2, 3, 2, 2), np.float32)
    kernel[1, 2, 0, 1], kernel[0, 1, 1, 0] = 3, -4
    indices = np.argwhere(kernel) if coordinates else np.flatnonzero(kernel)
    sparse = helper.make_sparse_tensor(tensor("w", kernel[kernel != 0]), tensor("", indices), kernel.shape)
    if in_a_node:
        proto = model([helper.make_node("Constant", [], ["w"], sparse_value=sparse), conv()])
    else:
        proto = model([conv()], sparse_initializer=[sparse])
    np.testing.assert_array_equal(read_checkpoint(save(tmp_path, proto)).layers[0].weights.kernel, kernel)


def test_weights_behind_an_identity_node_are_read(tmp_path: Path) -> None:
    proto = model([helper.make_node("Identity", ["w"], ["v"]), conv(inputs=("x", "v"))], [KERNEL])
    np.testing.assert_array_equal(read_checkpoint(save(tmp_path, proto)).layers[0].weights.kernel, values(4, 3, 3, 3))


def test_weights_that_are_also_listed_as_inputs_are_weights(tmp_path: Path) -> None:
    inputs = [info("x", ["N", 3, 8, 8]), info("w", [4, 3, 3, 3])]
    proto = model([conv()], [KERNEL], inputs=inputs)
    assert len(read_checkpoint(save(tmp_path, proto), {"x": (1, 3, 16, 16)}).layers) == 1


def test_negative_zero_is_read_as_zero(tmp_path: Path) -> None:
    kernel = values(4, 3, 3, 3)
    kernel[0] = 0
    negative = kernel.copy()
    negative[0] = -0.0
    first = read_checkpoint(save(tmp_path, conv_model(kernel)))
    second = read_checkpoint(save(tmp_path, conv_model(negative)))
    assert first.digest == second.digest
    assert not np.signbit(second.layers[0].weights.kernel[0]).any()


def test_layers_come_in_graph_order_with_the_sizes_that_shape_inference_finds(tmp_path: Path) -> None:
    write_network(tmp_path / "lenet5.onnx", lenet5(0.9, 0))
    checkpoint = read_checkpoint(tmp_path / "lenet5.onnx")
    assert [(layer.name, layer.spec.output_shape) for layer in checkpoint.layers] == [
        ("conv1", (20, 24, 24)),
        ("conv2", (50, 8, 8)),
        ("fc1", (500,)),
        ("fc2", (10,)),
    ]
    assert checkpoint.skipped == ()


def test_a_size_that_goes_through_computed_shapes_is_found(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["image"], axis=0),
        helper.make_node("Reshape", ["x", "image"], ["z"]),
        conv(inputs=("z", "w")),
    ]
    tensors = [
        tensor("zero", np.array([0])),
        tensor("one", np.array([1])),
        tensor("rest", np.array([3, 12, 6])),
        KERNEL,
    ]
    proto = model(nodes, tensors, inputs=[info("x", ["N", 216])])
    assert read_checkpoint(save(tmp_path, proto)).layers[0].spec.input_shape == (3, 12, 6)


def test_an_input_shape_replaces_the_shapes_in_the_file(tmp_path: Path) -> None:
    nodes = [conv("one", output="z", pads=[1] * 4), conv("two", ("z", "v"))]
    proto = model(
        nodes,
        [KERNEL, tensor("v", values(2, 4, 3, 3))],
        inputs=[info("x", ["N", 3, "h", "w"])],
        value_info=[info("z", ["N", 4, "h", "w"])],
    )
    path = save(tmp_path, proto)
    layers = read_checkpoint(path, {"x": (1, 3, 20, 10)}).layers
    assert [layer.spec.input_shape for layer in layers] == [(3, 20, 10), (4, 20, 10)]
    for value in (proto.graph.input[0], proto.graph.value_info[0]):
        value.type.tensor_type.shape.dim[2].dim_value = value.type.tensor_type.shape.dim[3].dim_value = 8
    layers = read_checkpoint(save(tmp_path, proto), {"x": (1, 3, 20, 10)}).layers
    assert [layer.spec.input_shape for layer in layers] == [(3, 20, 10), (4, 20, 10)]


def test_empty_and_shared_names_give_way_to_unique_output_names(tmp_path: Path) -> None:
    nodes = [
        conv("", ("x", "w"), "a"),
        conv("same", ("x", "w"), "b"),
        conv("same", ("x", "w"), "c"),
        conv("own", ("x", "w"), "d"),
        conv("a", ("x", "w"), "y"),
    ]
    layers = read_checkpoint(save(tmp_path, model(nodes, [KERNEL]))).layers
    assert [layer.name for layer in layers] == ["a_2", "b", "c", "own", "a"]


def test_a_skipped_node_and_a_layer_never_share_a_name(tmp_path: Path) -> None:
    nodes = [conv("n"), helper.make_node("ConvInteger", ["x", "w"], ["h"], "n")]
    checkpoint = read_checkpoint(save(tmp_path, model(nodes, [KERNEL])))
    assert [checkpoint.layers[0].name, checkpoint.skipped[0].name] == ["y", "h"]


def test_equal_models_in_different_files_have_one_digest(tmp_path: Path) -> None:
    first = read_checkpoint(save(tmp_path, conv_model(), "first.onnx"))
    second = read_checkpoint(save(tmp_path, conv_model(), "second.onnx"))
    assert first.digest == second.digest


def renamed(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].name = "other"


def output_renamed(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].output[0] = "other"


def padded(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute.append(helper.make_attribute("pads", [1, 1, 1, 1]))


def new_weights(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].CopyFrom(tensor("w", values(4, 3, 3, 3, seed=1)))


def skipped_node(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(helper.make_node("ConvTranspose", ["x", "t"], ["z"], "up"))


@pytest.mark.parametrize("change", [renamed, output_renamed, padded, new_weights, skipped_node])
def test_every_change_of_a_layer_or_a_skipped_node_changes_the_digest(change: Any, tmp_path: Path) -> None:
    proto = conv_model()
    before = read_checkpoint(save(tmp_path, proto)).digest
    change(proto)
    assert read_checkpoint(save(tmp_path, proto)).digest != before


def test_importing_the_reader_does_not_import_onnx() -> None:
    code = "import sys, codegen.frontend.onnx.reader, codegen.model_zoo; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
