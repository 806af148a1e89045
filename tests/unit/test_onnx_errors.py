"""ONNX reader: every defect of a file is a CheckpointError of one line that names the file."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from codegen.errors import CheckpointError
from codegen.frontend.onnx.reader import read_checkpoint
from tests.unit.onnx_models import conv, conv_model, info, model, save, tensor, values

KERNEL = tensor("w", values(4, 3, 3, 3))


def error_of(path: Path, input_shapes: Any = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path, input_shapes)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    assert "no such file" in error_of(tmp_path / "none.onnx")


def test_a_path_through_a_file_is_an_error(tmp_path: Path) -> None:
    assert "cannot be read" in error_of(save(tmp_path, conv_model()) / "inside.onnx")


def test_a_directory_is_an_error(tmp_path: Path) -> None:
    assert "directory" in error_of(tmp_path)


def test_a_pipe_is_an_error_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "not a regular file" in error_of(tmp_path / "pipe.onnx")


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").touch()
    assert "empty" in error_of(tmp_path / "empty.onnx")


def test_a_graph_without_nodes_is_an_error(tmp_path: Path) -> None:
    assert "(no nodes)" in error_of(save(tmp_path, model([])))


@pytest.mark.parametrize("data", [b"hello", b"\x89PNG\r\n\x1a\n" + bytes(60), b"PK\x03\x04" + bytes(60), b'{"a": 1}'])
def test_a_file_of_another_kind_is_an_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(data)
    assert "not an ONNX model" in error_of(path)


def test_a_file_cut_short_anywhere_is_an_error_that_names_it(tmp_path: Path) -> None:
    whole = conv_model(values(1, 3, 2, 2)).SerializeToString()
    path = tmp_path / "cut.onnx"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        error_of(path)


def test_a_damaged_file_is_read_or_is_a_checkpoint_error(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=tensor("", values(2, 3, 3, 3))),
        conv("one", ("x", "w"), "z", strides=[2, 2], pads=[1, 1, 1, 1]),
        conv("two", ("z", "v"), "y", auto_pad="SAME_UPPER"),
        helper.make_node("Reshape", ["y", "s"], ["r"]),
    ]
    kernel = values(2)
    indices = np.array([[0, 0, 1, 1], [1, 1, 0, 0]])
    sparse = helper.make_sparse_tensor(tensor("v", kernel), tensor("", indices), [2, 2, 3, 3])
    whole = model(nodes, [tensor("s", np.array([-1, 8]))], sparse_initializer=[sparse]).SerializeToString()
    path = tmp_path / "damaged.onnx"
    path.write_bytes(whole)
    assert len(read_checkpoint(path).layers) == 2
    rng = random.Random(0)
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 1, 3])):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(CheckpointError):
            read_checkpoint(path)


def test_a_name_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "damaged.onnx"
    path.write_bytes(model([conv("abcd")], [KERNEL]).SerializeToString().replace(b"abcd", b"ab\xffd"))
    assert "not text" in error_of(path)


def test_a_signalling_nan_is_an_error_like_any_other(tmp_path: Path) -> None:
    kernel = np.ones((1, 3, 1, 1), np.float32)
    kernel.view(np.uint32)[0, 0, 0, 0] = 0x7F800001
    assert "NaN" in error_of(save(tmp_path, conv_model(kernel)))


@pytest.mark.parametrize("opset", [1, 6])
def test_an_old_opset_is_an_error_that_says_how_to_convert(opset: int, tmp_path: Path) -> None:
    message = error_of(save(tmp_path, model([conv()], [KERNEL], opset=opset)))
    assert f"opset {opset} " in message
    assert "version_converter" in message


@pytest.mark.parametrize("opset", [7, 13, 23])
def test_opset_7_and_later_is_read(opset: int, tmp_path: Path) -> None:
    assert read_checkpoint(save(tmp_path, model([conv()], [KERNEL], opset=opset))).layers


def test_a_model_without_an_opset_is_an_error(tmp_path: Path) -> None:
    proto = conv_model()
    del proto.opset_import[:]
    assert "opset" in error_of(save(tmp_path, proto))


def test_a_model_that_shape_inference_refuses_is_an_error(tmp_path: Path) -> None:
    proto = model([conv(), helper.make_node("Unknown", ["y"], ["z"], domain="nowhere")], [KERNEL])
    assert "shape inference" in error_of(save(tmp_path, proto))


def test_an_error_that_quotes_a_name_not_in_utf8_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "damaged.onnx"
    proto = model([conv(), helper.make_node("Unknown", ["y"], ["z"], domain="nowhere")], [KERNEL])
    path.write_bytes(proto.SerializeToString().replace(b"nowhere", b"no\xffhere"))
    assert "shape inference" in error_of(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["weights", "biases"])
def test_weights_that_are_not_finite_are_an_error_that_names_the_layer(bad: float, place: str, tmp_path: Path) -> None:
    arrays = {"weights": values(4, 3, 3, 3), "biases": values(4)}
    arrays[place].flat[2] = bad
    proto = model([conv("stem", ("x", "w", "b"))], [tensor("w", arrays["weights"]), tensor("b", arrays["biases"])])
    message = error_of(save(tmp_path, proto))
    assert "layer 'stem'" in message
    assert f"1 of its {arrays[place].size} {place}" in message


def bias_of_five() -> onnx.ModelProto:
    return model([conv(inputs=("x", "w", "b"))], [KERNEL, tensor("b", values(5))])


def values_cut() -> onnx.ModelProto:
    proto = conv_model()
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:-3]
    return proto


@pytest.mark.parametrize(
    ("proto", "fact"),
    [
        (conv_model(values(4, 5, 3, 3)), "do not fit an input of the shape [?, 3, 8, 8]"),
        (conv_model(values(4, 3, 9, 1)), "do not fit an input"),
        (conv_model(values(4, 3, 1, 9)), "do not fit an input"),
        (conv_model(kernel_shape=[5, 5]), "kernel_shape [5, 5]"),
        (conv_model(values(4, 3)), "not [K, C, R, S]"),
        (conv_model(values(0, 3, 3, 3)), "not [K, C, R, S]"),
        (conv_model(input_shape=("N", 3, 8)), "do not fit an input of the shape [?, 3, 8]"),
        (bias_of_five(), "biases of the shape [5] do not fit 4 output channels"),
        (values_cut(), "429 bytes"),
        (conv_model(strides=[0, 1]), "strides are [0, 1]"),
        (conv_model(strides=[1]), "strides are [1]"),
        (conv_model(pads=[1, 1]), "pads are [1, 1]"),
        (conv_model(auto_pad="SAME"), "auto_pad is 'SAME'"),
        (model([conv(inputs=("x",))]), "no weights"),
    ],
)
def test_an_invalid_convolution_is_an_error_that_names_the_layer(
    proto: onnx.ModelProto, fact: str, tmp_path: Path
) -> None:
    message = error_of(save(tmp_path, proto))
    assert "layer 'conv'" in message
    assert fact in message


@pytest.mark.parametrize("indices", [[-1], [12], [[0, 0, 0, 5]], [[0, 0]], [0, 1]])
def test_indices_of_sparse_weights_outside_the_tensor_are_an_error(indices: Any, tmp_path: Path) -> None:
    sparse = helper.make_sparse_tensor(tensor("w", values(1)), tensor("", np.array(indices)), [1, 3, 2, 2])
    assert "indices" in error_of(save(tmp_path, model([conv()], sparse_initializer=[sparse])))


def test_sparse_weights_of_absurd_size_are_an_error_before_they_take_memory(tmp_path: Path) -> None:
    sparse = helper.make_sparse_tensor(tensor("w", values(1)), tensor("", np.array([0])), [2**40, 3, 2, 2])
    assert "sparse" in error_of(save(tmp_path, model([conv()], sparse_initializer=[sparse])))


@pytest.mark.parametrize(
    ("input_shapes", "fact"),
    [
        ({"image": (1, 3, 8, 8)}, "no such input"),
        ({"w": (4, 3, 3, 3)}, "no such input"),
        ({"x": (3, 8, 8)}, "it has 4 dimensions, not 3"),
        ({"x": (1, 3, 0, 8)}, "1 or more"),
        ({"x": ()}, "1 or more"),
        (
            {"x": (None, None, 8, 8)},
            "the shape [?, ?, 8, 8] cannot be set for input 'x': an open size is one that the file leaves open",
        ),
    ],
)
def test_a_wrong_input_shape_is_an_error_that_names_the_inputs(input_shapes: Any, fact: str, tmp_path: Path) -> None:
    proto = model([conv()], [KERNEL], inputs=[info("x", ["N", 3, 8, 8]), info("w", [4, 3, 3, 3]), info("mask", None)])
    message = error_of(save(tmp_path, proto), input_shapes)
    assert fact in message
    assert message.endswith("the model's inputs are x [?, 3, 8, 8], mask of unknown shape")
