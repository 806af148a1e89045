"""ONNX reader: the floating-point type of weights and activations is the layer's data type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from codegen.errors import CheckpointError
from codegen.frontend.onnx.reader import read_checkpoint
from tests.unit.onnx_models import info, layer_of, model, node, save, tensor, values

FLOAT, FLOAT16, BFLOAT16 = (onnx.TensorProto.DataType.Value(name) for name in ("FLOAT", "FLOAT16", "BFLOAT16"))
NAMES = {FLOAT: "float32", FLOAT16: "float16", BFLOAT16: "bfloat16"}


def typed(name: str, array: Any, element_type: int) -> onnx.TensorProto:
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    return tensor(name, np.asarray(array, np.float32).astype(dtype))


def exact(array: Any, element_type: int) -> Any:
    """Values rounded to the type, as float32."""
    return np.asarray(array, np.float32).astype(helper.tensor_dtype_to_np_dtype(element_type)).astype(np.float32)


@pytest.mark.parametrize("element_type", NAMES)
@pytest.mark.parametrize("in_bytes", [True, False])
def test_weights_of_each_type_are_read_as_they_are(element_type: int, in_bytes: bool, tmp_path: Path) -> None:
    kernel, bias = typed("w", values(4, 3, 3, 3), element_type), typed("b", values(4, seed=1), element_type)
    if not in_bytes:
        kernel = helper.make_tensor("w", element_type, [4, 3, 3, 3], values(4, 3, 3, 3).ravel())
    proto = model([node("Conv", "x w b", "y")], [kernel, bias], inputs=[info("x", ["N", 3, 8, 8], element_type)])
    layer = layer_of(tmp_path, proto)
    assert layer.spec.data_type == NAMES[element_type]
    assert layer.weights.kernel.dtype == layer.weights.bias.dtype == np.float32
    np.testing.assert_array_equal(layer.weights.kernel, exact(values(4, 3, 3, 3), element_type))
    np.testing.assert_array_equal(layer.weights.bias, exact(values(4, seed=1), element_type))


@pytest.mark.parametrize("element_type", [FLOAT16, BFLOAT16])
def test_folded_values_are_rounded_once_to_the_layers_type(element_type: int, tmp_path: Path) -> None:
    weights, scale, shift = values(3, 4), values(4, seed=1), values(4, seed=2)
    nodes = [node("MatMul", "x w", "c"), node("Mul", "c k", "d"), node("Add", "d k2", "e"), node("Mul", "e k", "y")]
    tensors = [typed(name, array, element_type) for name, array in (("w", weights), ("k", scale), ("k2", shift))]
    layer = layer_of(tmp_path, model(nodes, tensors, inputs=[info("x", ["N", 3], element_type)]))
    w, k, k2 = (exact(array, element_type).astype(np.float64) for array in (weights, scale, shift))
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    assert layer.output == "y"
    np.testing.assert_array_equal(layer.weights.kernel, (w.T * (k * k)[:, None]).astype(dtype).astype(np.float32))
    np.testing.assert_array_equal(layer.weights.bias, (k2 * k).astype(dtype).astype(np.float32))


def test_bounds_of_a_half_precision_clip_are_read(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c"), node("Clip", "c low", "y")]
    tensors = [typed("w", values(4, 3, 3, 3), FLOAT16), typed("low", 0.25, FLOAT16)]
    layer = layer_of(tmp_path, model(nodes, tensors, inputs=[info("x", ["N", 3, 8, 8], FLOAT16)]))
    assert layer.output == "y"


@pytest.mark.parametrize(
    ("weights", "biases", "x", "reason"),
    [
        (BFLOAT16, FLOAT, FLOAT16, "its input is float16 and its weights bfloat16"),
        (FLOAT16, FLOAT16, FLOAT, "its input is float32 and its weights float16"),
        (FLOAT, BFLOAT16, FLOAT, "its input is float32 and its biases bfloat16"),
        (onnx.TensorProto.DOUBLE, FLOAT, onnx.TensorProto.DOUBLE, "its weights are float64"),
        (FLOAT, FLOAT, onnx.TensorProto.DOUBLE, "its input is float64"),
        (onnx.TensorProto.INT8, FLOAT, FLOAT, "its weights are int8"),
        (FLOAT, onnx.TensorProto.INT32, FLOAT, "its biases are int32"),
    ],
)
def test_types_that_differ_or_are_not_compiled_are_the_reason(
    weights: int, biases: int, x: int, reason: str, tmp_path: Path
) -> None:
    tensors = [typed("w", values(4, 3, 3, 3), weights), typed("b", values(4), biases)]
    proto = model([node("Conv", "x w b", "y")], tensors, inputs=[info("x", ["N", 3, 8, 8], x)])
    with pytest.raises(CheckpointError, match=f"nothing to compile.*{reason}"):
        read_checkpoint(save(tmp_path, proto))


def test_a_layer_between_quantised_tensors_computes_in_float32(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "a"),
        node("DequantizeLinear", "w s z", "v"),
        node("DequantizeLinear", "b s", "c"),
        node("Conv", "a v c", "y"),
    ]
    kernel, bias = np.arange(108, dtype=np.int8).reshape(4, 3, 3, 3), np.arange(4, dtype=np.int32)
    tensors = [tensor("w", kernel), tensor("b", bias), tensor("s", np.float32(0.25)), tensor("z", np.int8(2))]
    layer = layer_of(tmp_path, model(nodes, tensors))
    assert (layer.input, layer.spec.data_type) == ("a", "float32")
    np.testing.assert_array_equal(layer.weights.kernel, (kernel - np.float32(2)) / 4)
    np.testing.assert_array_equal(layer.weights.bias, bias / np.float32(4))


def test_not_finite_half_precision_weights_are_an_error(tmp_path: Path) -> None:
    kernel = values(4, 3, 3, 3).astype(np.float16)
    kernel[0, 0, 0, 0] = np.inf
    proto = model([node("Conv", "x w", "y")], [tensor("w", kernel)], inputs=[info("x", ["N", 3, 8, 8], FLOAT16)])
    with pytest.raises(CheckpointError, match="1 of its 108 weights are NaN or infinite"):
        read_checkpoint(save(tmp_path, proto))
