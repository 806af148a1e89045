"""Operators on 8-bit integers compute in floats what onnxruntime computes in integers, but for one rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from codegen.frontend.onnx.graph.quantized_operators import ON_INTEGERS, write_as_qdq
from codegen.frontend.onnx.reader import read_checkpoint
from tests.unit.onnx_models import model, node, pruned, save, tensor, values

OPSET = 17
MICROSOFT = "com.microsoft"
X, W, RESULT = ("x", "x_scale", "x_zero"), ("w", "w_scale", "w_zero"), ("y_scale", "y_zero")
CASES = {
    "QGemm": helper.make_node("QGemm", [*X, *W, "bias", *RESULT], ["y"], domain=MICROSOFT, transB=1),
    "QLinearAdd": helper.make_node("QLinearAdd", [*X, *X, *RESULT], ["y"], domain=MICROSOFT),
    "QLinearAveragePool": helper.make_node(
        "QLinearAveragePool", [*X, *RESULT], ["y"], domain=MICROSOFT, kernel_shape=[2, 2], channels_last=0
    ),
    "QLinearConcat": helper.make_node("QLinearConcat", [*RESULT, *X, *X], ["y"], domain=MICROSOFT, axis=1),
    "QLinearConv": helper.make_node("QLinearConv", [*X, *W, *RESULT, "bias"], ["y"], pads=[1, 1, 1, 1]),
    "QLinearGlobalAveragePool": helper.make_node(
        "QLinearGlobalAveragePool", [*X, *RESULT], ["y"], domain=MICROSOFT, channels_last=0
    ),
    "QLinearLeakyRelu": helper.make_node("QLinearLeakyRelu", [*X, *RESULT], ["y"], domain=MICROSOFT, alpha=0.2),
    "QLinearMatMul": helper.make_node("QLinearMatMul", [*X, *W, *RESULT], ["y"]),
    "QLinearMul": helper.make_node("QLinearMul", [*X, *X, *RESULT], ["y"], domain=MICROSOFT),
    "QLinearSigmoid": helper.make_node("QLinearSigmoid", [*X, *RESULT], ["y"], domain=MICROSOFT),
}
SHAPES = {"QGemm": ((4, 8), (6, 8)), "QLinearMatMul": ((4, 8), (8, 6)), "QLinearConv": ((2, 3, 8, 8), (6, 3, 3, 3))}


def model_of(operator: str) -> tuple[onnx.ModelProto, np.ndarray]:
    """One node with weights of a scale for each output channel, and its input."""
    rng = np.random.default_rng(0)
    x_shape, w_shape = SHAPES.get(operator, ((2, 3, 8, 8), (1,)))
    constants = {
        "x_scale": np.float32(0.02),
        "x_zero": np.uint8(120),
        "w": rng.integers(-100, 100, w_shape).astype(np.int8),
        "w_scale": rng.uniform(0.001, 0.01, 6).astype(np.float32),
        "w_zero": np.zeros(6, np.int8),
        "y_scale": np.float32(0.03),
        "y_zero": np.uint8(100),
        "bias": rng.integers(-2000, 2000, 6).astype(np.int32),
    }
    graph = helper.make_graph(
        [CASES[operator]],
        operator,
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x_shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), rng.integers(0, 256, x_shape).astype(np.uint8)


@pytest.mark.parametrize("operator", sorted(ON_INTEGERS))
def test_an_operator_on_integers_is_written_in_floats_and_is_a_rounding_off_at_most(operator: str) -> None:
    model, x = model_of(operator)
    [expected] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    write_as_qdq(model.graph, OPSET)
    assert not {node.op_type for node in model.graph.node} & ON_INTEGERS
    assert {node.domain for node in model.graph.node} == {""}
    [computed] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert computed.dtype == expected.dtype
    assert np.abs(computed.astype(int) - expected.astype(int)).max() <= 1
    assert len(np.unique(expected)) > 3


@pytest.mark.parametrize("operator", ["QLinearConv", "QLinearAdd"])
def test_integers_without_one_constant_scale_stay(operator: str) -> None:
    model, _ = model_of(operator)
    model.graph.initializer.remove(next(each for each in model.graph.initializer if each.name == "x_scale"))
    before = model.SerializeToString()
    write_as_qdq(model.graph, OPSET)
    assert model.SerializeToString() == before


def dynamic(folder: Path, *, per_channel: bool) -> tuple[Path, Path]:
    """A network with two products and a convolution, and what onnxruntime's dynamic quantization makes of it."""
    nodes = [
        node("Conv", "x k", "c", "conv"),
        node("Relu", "c", "r"),
        node("Reshape", "r s", "rows"),
        node("MatMul", "rows w", "h", "first"),
        node("Add", "h b", "t"),
        node("MatMul", "t v", "y", "second"),
    ]
    constants = [tensor("k", pruned(4, 3, 3, 3, seed=1)), tensor("s", np.array([0, -1, 36]))]
    constants += [tensor("w", pruned(36, 24, seed=2)), tensor("b", values(24)), tensor("v", pruned(24, 8, seed=3))]
    before, after = save(folder, model(nodes, constants)), folder / "dynamic.onnx"
    quantize_dynamic(before, after, per_channel=per_channel, weight_type=QuantType.QUInt8)
    return before, after


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamically_quantized_products_are_compiled_with_the_zeros_of_their_weights(
    per_channel: bool, tmp_path: Path
) -> None:
    before, after = dynamic(tmp_path, per_channel=per_channel)
    assert {"MatMulInteger", "ConvInteger"} <= {each.op_type for each in onnx.load(after).graph.node}
    layers, floating = read_checkpoint(after).layers, read_checkpoint(before).layers
    assert [each.spec.input_shape for each in layers] == [each.spec.input_shape for each in floating]
    for layer, wanted in zip(layers, floating, strict=True):
        zeros = wanted.weights.kernel == 0
        assert np.count_nonzero(layer.weights.kernel[zeros]) == 0
        np.testing.assert_allclose(layer.weights.kernel, wanted.weights.kernel, atol=0.03)


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamically_quantized_products_compute_what_onnxruntime_does(per_channel: bool, tmp_path: Path) -> None:
    proto = onnx.load(dynamic(tmp_path, per_channel=per_channel)[1])
    x = {"x": values(3, 3, 8, 8, seed=7)}
    [wanted] = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, x)
    write_as_qdq(proto.graph, OPSET)
    assert not {"MatMulInteger", "ConvInteger"} & {each.op_type for each in proto.graph.node}
    [found] = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=0.02 * np.abs(wanted).max())


def test_integers_that_somebody_else_reads_stay(tmp_path: Path) -> None:
    proto = onnx.load(dynamic(tmp_path, per_channel=False)[1])
    products = [each for each in proto.graph.node if each.op_type == "MatMulInteger"]
    proto.graph.output.append(helper.make_tensor_value_info(products[0].output[0], TensorProto.INT32, None))
    write_as_qdq(proto.graph, OPSET)
    assert [each.op_type for each in proto.graph.node].count("MatMulInteger") == 1
