"""ONNX reader: nodes with weights that are not compiled are listed with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from codegen.errors import CheckpointError
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import SkippedLayer
from tests.unit.onnx_models import FLOAT, conv, info, model, save, tensor, values

KERNEL = tensor("w", values(4, 3, 3, 3))
INPUT = info("x", ["N", 3, 8, 8])


def skipped_beside_a_layer(
    folder: Path, node: onnx.NodeProto, tensors: Any = (), inputs: Any = (), **fields: Any
) -> SkippedLayer:
    """The skipped node of a model of one valid convolution and `node`."""
    proto = model([conv("good"), node], [KERNEL, *tensors], inputs=[INPUT, *inputs], **fields)
    checkpoint = read_checkpoint(save(folder, proto))
    assert [layer.name for layer in checkpoint.layers] == ["good"]
    (skipped,) = checkpoint.skipped
    assert skipped.operator == node.op_type
    return skipped


@pytest.mark.parametrize(
    ("weights", "attributes", "reason"),
    [
        (values(4, 3, 3, 3), {"pads": [-1, 0, 0, 0]}, "negative padding"),
        (values(4, 3, 3, 3).astype(np.float16), {}, "its input is float32 and its weights float16"),
        (values(4, 3, 3, 3).astype(np.float64), {}, "float64"),
    ],
)
def test_an_unsupported_convolution_is_skipped(
    weights: np.ndarray[Any, Any], attributes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    node = conv("odd", ("x", "v"), "z", **attributes)
    assert reason in skipped_beside_a_layer(tmp_path, node, [tensor("v", weights)]).reason


@pytest.mark.parametrize(
    ("node", "weights", "weights_count", "multiply_adds"),
    [
        (conv("odd", ("x", "v"), "z", pads=[-1, 0, 0, 0]), values(4, 3, 3, 3), 108, None),  # no known size of output
        (conv("odd", ("x", "v"), "z"), values(4, 3, 3, 3).astype(np.float64), 108, 108 * 36),
        (helper.make_node("ConvInteger", ["b", "v"], ["z"], "odd"), values(2, 3, 1, 1).astype(np.uint8), 6, 6 * 64),
        (helper.make_node("ConvTranspose", ["s", "v"], ["z"], "odd"), values(3, 2, 3, 3, 3), 162, 162 * 8 * 8 * 8),
        (helper.make_node("MatMul", ["r", "v"], ["z"], "odd"), values(5, 8, 6), 240, 5 * 7 * 8 * 6),
        (helper.make_node("MatMulInteger", ["b", "v"], ["z"], "odd"), values(8, 6).astype(np.uint8), 48, 3 * 8 * 48),
        (helper.make_node("LSTM", ["r", "v", "v"], ["z"], "odd", hidden_size=2), values(1, 8, 8), 128, None),
        (conv("odd", ("x", "dynamic"), "z"), values(1), None, None),
    ],
)
def test_a_skipped_node_has_its_size_where_known(
    node: onnx.NodeProto, weights: np.ndarray[Any, Any], weights_count: int, multiply_adds: int, tmp_path: Path
) -> None:
    inputs = [
        info("b", ["N", 3, 8, 8], onnx.TensorProto.UINT8),
        info("s", ["N", 3, 8, 8, 8]),
        info("r", ["N", 5, 7, 8]),
        info("dynamic", [4, 3, 3, 3]),
    ]
    skipped = skipped_beside_a_layer(tmp_path, node, [tensor("v", weights)], inputs)
    assert (skipped.weights, skipped.multiply_adds) == (weights_count, multiply_adds)


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_a_convolution_of_three_dimensions_is_skipped(operator: str, tmp_path: Path) -> None:
    node = helper.make_node(operator, ["s", "v"], ["z"], "odd", strides=[1, 1, 1])
    tensors = [tensor("v", values(3, 3, 3, 3, 3))]
    assert "3-D convolution" in skipped_beside_a_layer(tmp_path, node, tensors, [info("s", ["N", 3, 8, 8, 8])]).reason


@pytest.mark.parametrize("position", [1, 2])
def test_weights_and_biases_that_are_computed_are_the_reason(position: int, tmp_path: Path) -> None:
    names = ["x", "w", "b"]
    names[position] = "computed"
    shape = [4, 3, 3, 3] if position == 1 else [4]
    node = conv("odd", names, "z")
    reason = skipped_beside_a_layer(tmp_path, node, [tensor("b", values(4))], [info("computed", shape)]).reason
    assert "computed while the model runs" in reason
    assert ("weights" if position == 1 else "biases") in reason


@pytest.mark.parametrize(
    ("operator", "inputs", "reason"),
    [
        ("ConvInteger", ("x", "c"), "8-bit integers"),
        ("MatMulInteger", ("g", "c"), "8-bit integers"),
        ("DeformConv", ("x", "c", "g"), "deformable"),
        ("Einsum", ("g", "c"), "it is an einsum"),
        ("LSTM", ("g", "c", "c"), "recurrent"),
    ],
)
def test_other_operators_with_weights_are_skipped(
    operator: str, inputs: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    node = helper.make_node(operator, inputs, ["z"], "odd")
    assert reason in skipped_beside_a_layer(tmp_path, node, [tensor("c", values(2, 2))], [info("g", [2, 2])]).reason


def test_nodes_without_weights_are_not_listed(tmp_path: Path) -> None:
    nodes = [
        conv("good", output="z"),
        helper.make_node("Relu", ["z"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2]),
        helper.make_node("MatMul", ["p", "p"], ["y"], "attention"),
    ]
    assert read_checkpoint(save(tmp_path, model(nodes, [KERNEL]))).skipped == ()


@pytest.mark.parametrize(
    ("operator", "domain"), [("FusedMatMul", "com.microsoft"), ("MatMulInteger", ""), ("Einsum", "")]
)
def test_a_product_of_two_activations_has_no_weights_and_is_not_listed(
    operator: str, domain: str, tmp_path: Path
) -> None:
    nodes = [conv("good"), helper.make_node(operator, ["g", "g"], ["z"], "attention", domain=domain)]
    proto = model(nodes, [KERNEL], inputs=[INPUT, info("g", [2, 2])])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert read_checkpoint(save(tmp_path, proto)).skipped == ()


def test_a_quantized_network_is_noted_once(tmp_path: Path) -> None:
    nodes = [conv("first", output="t0")]
    for i in range(2):
        nodes += [
            helper.make_node("QuantizeLinear", [f"t{i}", "s", "z"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]),
            conv(f"c{i}", (f"d{i}", "v"), f"t{i + 1}"),
        ]
    scale, zero = tensor("s", np.float32(0.1)), tensor("z", np.int8(0))
    proto = model(nodes, [KERNEL, tensor("v", values(4, 4, 1, 1)), scale, zero], output="t2")
    [note] = read_checkpoint(save(tmp_path, proto)).notes
    assert note.startswith("2 of 3 layers are quantized to integers")


def test_a_convolution_in_a_sub_graph_is_skipped(tmp_path: Path) -> None:
    branch = helper.make_graph([conv("inner", ("x", "w"), "t")], "branch", [], [info("t", None)])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "other", [], [info("e", None)])
    node = helper.make_node("If", ["flag"], ["z"], "choose", then_branch=branch, else_branch=other)
    inputs = [INPUT, info("flag", [], onnx.TensorProto.BOOL)]
    checkpoint = read_checkpoint(save(tmp_path, model([conv("good"), node], [KERNEL], inputs=inputs)))
    (skipped,) = checkpoint.skipped
    assert (skipped.name, skipped.operator) == ("inner", "Conv")
    assert "a sub-graph of If 'choose'" in skipped.reason


def test_an_operator_of_another_domain_that_is_called_conv_is_skipped(tmp_path: Path) -> None:
    proto = model([conv("good"), conv("odd", output="z", domain="vendor")], [KERNEL])
    proto.opset_import.append(helper.make_opsetid("vendor", 1))
    (skipped,) = read_checkpoint(save(tmp_path, proto)).skipped
    assert "domain 'vendor'" in skipped.reason


@pytest.mark.parametrize(
    ("shape", "option"),
    [
        (["N", 3, "height", "width"], "--input-shape image:N,3,SIZE,SIZE"),
        (["N", 3, 224, None], "--input-shape image:N,3,224,SIZE"),
        (None, "--input-shape image:N,CHANNELS,HEIGHT,WIDTH"),
    ],
)
def test_an_unknown_size_is_skipped_with_the_option_that_would_help(shape: Any, option: str, tmp_path: Path) -> None:
    node = conv("odd", ("image", "w"), "z")
    assert option in skipped_beside_a_layer(tmp_path, node, (), [info("image", shape)]).reason


def test_a_size_that_no_input_decides_is_skipped_without_an_option(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mystery", ["x"], ["m"], domain="vendor"), conv("good"), conv("odd", ("m", "w"), "z")]
    proto = model(nodes, [KERNEL], inputs=[info("x", [1, 3, 8, 8])])
    proto.opset_import.append(helper.make_opsetid("vendor", 1))
    (skipped,) = read_checkpoint(save(tmp_path, proto)).skipped
    assert "do not follow" in skipped.reason
    assert "--input-shape" not in skipped.reason


def test_a_model_without_compiled_layers_is_an_error_with_reasons(tmp_path: Path) -> None:
    proto = model([conv("odd", group=3)], [tensor("w", values(3, 1, 3, 3))], inputs=[info("x", None)])
    with pytest.raises(CheckpointError, match=r"model\.onnx: .*nothing to compile.*odd \(Conv\): .*height and width"):
        read_checkpoint(save(tmp_path, proto))


def test_nodes_that_are_skipped_for_one_reason_are_named_once(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMulInteger", ["g", "c"], [f"y{i}"], f"fc{i}") for i in range(9)]
    proto = model(nodes, [tensor("c", values(2, 2))], inputs=[info("g", [2, 2])], output="y0")
    with pytest.raises(CheckpointError, match=r"fc0 and 8 more \(MatMulInteger\): it computes on 8-bit integers[^(]*$"):
        read_checkpoint(save(tmp_path, proto))


def test_many_reasons_are_cut_short(tmp_path: Path) -> None:
    operators = ("MatMulInteger", "ConvInteger", "Einsum", "GRU", "LSTM", "RNN", "DeformConv")
    nodes = [helper.make_node(each, ["g", "c", "c"], [f"y{i}"], f"n{i}") for i, each in enumerate(operators)]
    proto = model(nodes, [tensor("c", values(2, 2))], inputs=[info("g", [2, 2])], output="y0")
    with pytest.raises(CheckpointError, match=r"n4 .*; and 2 more reasons$"):
        read_checkpoint(save(tmp_path, proto))


def test_a_model_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no node with weights"):
        read_checkpoint(save(tmp_path, model([helper.make_node("Relu", ["x"], ["y"])])))


def test_integer_weights_are_named_by_their_type(tmp_path: Path) -> None:
    quantised = helper.make_tensor("v", onnx.TensorProto.INT8, [1, 3, 1, 1], b"\1\2\3", raw=True)
    assert quantised.data_type != FLOAT
    assert "its weights are int8" in skipped_beside_a_layer(tmp_path, conv("odd", ("x", "v"), "z"), [quantised]).reason


def test_layers_skipped_for_the_same_cause_say_so_in_the_same_words(tmp_path: Path) -> None:
    nodes = [conv("good"), *(conv(f"cropped{i}", output=f"z{i}", pads=[-i, 0, 0, 0]) for i in (1, 2))]
    nodes += [helper.make_node("LSTM", ["g", "c", "c"], ["h"], "recurrent")]
    proto = model(nodes, [KERNEL, tensor("c", values(2, 2))], inputs=[INPUT, info("g", [2, 2])])
    skipped = read_checkpoint(save(tmp_path, proto)).skipped
    assert len({layer.reason for layer in skipped}) == 3
    assert [layer.kind for layer in skipped] == ["negative padding"] * 2 + ["operator not compiled"]


def test_an_unknown_size_is_a_cause_of_its_own(tmp_path: Path) -> None:
    skipped = skipped_beside_a_layer(tmp_path, conv("odd", ("image", "w"), "z"), (), [info("image", None)])
    assert skipped.kind == "input size not known"
