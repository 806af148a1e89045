"""ONNX reader: constants that can be computed before the model runs, within limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from codegen.errors import CheckpointError
from codegen.frontend.onnx.reader import read_checkpoint
from tests.unit.onnx_models import (
    assert_layer_computes_its_output,
    constants,
    conv,
    info,
    layer_of,
    model,
    node,
    save,
    tensor,
    values,
)

KERNEL = values(4, 3, 3, 3)
CODES = np.arange(-54, 54, dtype=np.int8).reshape(4, 3, 3, 3)

COMPUTED: list[tuple[list[onnx.NodeProto], dict[str, Any], Any]] = [
    ([node("Transpose", "v", "w", perm=[3, 2, 0, 1])], {"v": KERNEL.transpose(2, 3, 1, 0)}, KERNEL),
    ([node("Reshape", "v s", "w")], {"v": KERNEL.ravel(), "s": np.array([4, 3, 3, -1])}, KERNEL),
    ([node("DequantizeLinear", "v s", "w")], {"v": CODES, "s": 0.5}, CODES * np.float32(0.5)),
    (
        [node("DequantizeLinear", "v s z", "w", axis=0)],
        {"v": CODES, "s": np.float32([1, 2, 4, 8]), "z": np.int8([0, 1, 2, 3])},
        (CODES - np.arange(4)[:, None, None, None]) * np.float32([1, 2, 4, 8])[:, None, None, None],
    ),
    ([node("Cast", "v", "w", to=1)], {"v": KERNEL.astype(np.float16)}, KERNEL.astype(np.float16).astype(np.float32)),
    ([node("Mul", "v m", "w")], {"v": KERNEL, "m": np.float32(KERNEL > 0)}, KERNEL * (KERNEL > 0)),
    ([node("Identity", "v", "u"), node("Identity", "u", "w")], {"v": KERNEL}, KERNEL),
    ([node("Concat", "u v", "w", axis=0)], {"u": KERNEL[:1], "v": KERNEL[1:]}, KERNEL),
    ([node("Gather", "v i", "w", axis=0)], {"v": KERNEL, "i": np.array([3, 0])}, KERNEL[[3, 0]]),
    ([node("Slice", "v b e", "w")], {"v": KERNEL, "b": np.array([1]), "e": np.array([3])}, KERNEL[1:3]),
    ([node("Expand", "v s", "w")], {"v": KERNEL[:1], "s": np.array([4, 3, 3, 3])}, np.repeat(KERNEL[:1], 4, 0)),
    (
        [
            node("Shape", "v", "s"),
            node("ConstantOfShape", "s", "o", value=tensor("", np.float32([2]))),
            node("Add", "o v", "w"),
        ],
        {"v": KERNEL},
        KERNEL + 2,
    ),
]


@pytest.mark.parametrize(("nodes", "arrays", "expected"), COMPUTED)
def test_weights_that_can_be_computed_before_the_model_runs_are(
    nodes: list[onnx.NodeProto], arrays: dict[str, Any], expected: Any, tmp_path: Path
) -> None:
    layer = layer_of(tmp_path, model([*nodes, conv()], constants(**arrays)))
    np.testing.assert_array_equal(layer.weights.kernel, expected)


def test_a_matrix_product_with_computed_weights_is_a_layer(tmp_path: Path) -> None:
    nodes = [node("Transpose", "v", "w"), node("MatMul", "x w", "y", "fc")]
    proto = model(nodes, constants(v=values(4, 5)), inputs=[info("x", ["N", 5])])
    np.testing.assert_array_equal(layer_of(tmp_path, proto).weights.kernel, values(4, 5))


def test_attributes_of_old_opsets_are_understood(tmp_path: Path) -> None:
    nodes = [node("Unsqueeze", "v", "u", axes=[0]), node("Squeeze", "u", "w", axes=[0]), conv()]
    layer = layer_of(tmp_path, model(nodes, constants(v=KERNEL), opset=9))
    np.testing.assert_array_equal(layer.weights.kernel, KERNEL)


def test_numbers_in_constant_nodes_are_read(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["s"], value_ints=[4, 3, 3, 3]),
        helper.make_node("Constant", [], ["k"], value_float=2.0),
        node("Reshape", "v s", "w"),
        conv(output="c"),
        node("Mul", "c k", "y"),
    ]
    layer = layer_of(tmp_path, model(nodes, constants(v=KERNEL.ravel())))
    np.testing.assert_array_equal(layer.weights.kernel, KERNEL * 2)


def test_constants_that_are_computed_may_be_sparse_and_beside_the_model(tmp_path: Path) -> None:
    kernel = np.where(KERNEL > 1, KERNEL, 0)
    sparse = helper.make_sparse_tensor(
        tensor("v", kernel[kernel != 0]), tensor("", np.flatnonzero(kernel)), kernel.shape
    )
    shift = tensor("b", KERNEL)
    shift.ClearField("raw_data")
    shift.data_location = onnx.TensorProto.EXTERNAL
    shift.external_data.add(key="location", value="b.bin")
    (tmp_path / "b.bin").write_bytes(KERNEL.tobytes())
    proto = model([node("Add", "v b", "w"), conv()], [shift], sparse_initializer=[sparse])
    np.testing.assert_array_equal(layer_of(tmp_path, proto).weights.kernel, kernel + KERNEL)


def test_a_constant_that_no_layer_needs_is_not_computed(tmp_path: Path) -> None:
    nodes = [node("Reshape", "v s", "u"), node("ConstantOfShape", "s", "h"), conv()]
    proto = model(nodes, constants(v=KERNEL, w=KERNEL, s=np.array([2**40, 2**20])))
    assert layer_of(tmp_path, proto).name == "conv"


@pytest.mark.parametrize(
    ("nodes", "arrays", "reason"),
    [
        ([node("ConstantOfShape", "s", "w")], {"s": np.array([2**20, 2**20, 3, 3])}, "elements"),
        ([node("Expand", "v s", "w")], {"v": KERNEL, "s": np.array([2**40, 4, 3, 3, 3])}, "elements"),
        ([node("Gather", "v i", "w")], {"v": KERNEL, "i": np.array([7])}, "Gather 'w'"),
        ([node("Cast", "v", "w", to=99)], {"v": KERNEL}, "Cast 'w'"),
        ([node("RandomNormalLike", "v", "w")], {"v": KERNEL}, "computed while the model runs"),
        ([node("Add", "v x", "w")], {"v": KERNEL}, "computed while the model runs"),
        ([node("Identity", "v", "w", domain="vendor")], {"v": KERNEL}, "computed while the model runs"),
    ],
)
def test_weights_that_cannot_be_computed_are_the_reason(
    nodes: list[onnx.NodeProto], arrays: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    proto = model([*nodes, conv()], constants(**arrays))
    proto.opset_import.append(helper.make_opsetid("vendor", 1))
    with pytest.raises(CheckpointError, match=f"nothing to compile.*{reason}"):
        read_checkpoint(save(tmp_path, proto))


def test_a_fold_with_a_constant_that_cannot_be_computed_is_left(tmp_path: Path) -> None:
    nodes = [node("Gather", "v i", "k"), conv(output="c"), node("Mul", "c k", "y")]
    proto = model(nodes, constants(w=KERNEL, v=values(3), i=np.array([7])))
    assert layer_of(tmp_path, proto).output == "c"


def test_an_unreadable_folded_constant_names_the_layer(tmp_path: Path) -> None:
    proto = model([conv(output="c"), node("Mul", "c k", "y")], constants(w=KERNEL, k=values(4)))
    proto.graph.initializer[1].raw_data = b"12345"
    with pytest.raises(CheckpointError, match=r"layer 'conv': .*5 bytes"):
        read_checkpoint(save(tmp_path, proto))


def test_weights_that_are_standardised_before_the_model_runs_are(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "v flat", "rows"),
        node("ReduceMean", "rows", "mean", axes=[1], keepdims=1),
        node("Sub", "rows mean", "centred"),
        node("Mul", "centred centred", "squares"),
        node("ReduceMean", "squares", "variance", axes=[1], keepdims=1),
        node("Sqrt", "variance", "deviation"),
        node("Div", "centred deviation", "even"),
        node("Reshape", "even shape", "w"),
        conv(),
    ]
    proto = model(nodes, constants(v=KERNEL, flat=np.array([4, 27]), shape=np.array([4, 3, 3, 3])))
    layer = layer_of(tmp_path, proto)
    rows = KERNEL.reshape(4, 27).astype(np.float64)
    expected = (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
    np.testing.assert_allclose(layer.weights.kernel.reshape(4, 27), expected, rtol=1e-4, atol=1e-5)
    assert_layer_computes_its_output(layer, proto, x=values(2, 3, 8, 8))


def test_weights_standardised_by_a_batch_normalization_that_trains_are_computed(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "v one", "images"),
        node("BatchNormalization", "images gain zeros zeros gain", "even mean variance", training_mode=1),
        node("Reshape", "even shape", "w"),
        conv(),
    ]
    arrays = {"one": np.array([1, 4, 27]), "shape": np.array([4, 3, 3, 3]), "gain": np.ones(4, np.float32)}
    proto = model(nodes, constants(v=KERNEL, zeros=np.zeros(4, np.float32), **arrays))
    rows = KERNEL.reshape(4, 27).astype(np.float64)
    expected = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    kernel = layer_of(tmp_path, proto).weights.kernel
    np.testing.assert_allclose(kernel.reshape(4, 27), expected, rtol=1e-4, atol=1e-5)


def test_biases_that_are_cast_like_an_input_are_constants(tmp_path: Path) -> None:
    nodes = [node("CastLike", "b x", "c"), conv(inputs=("x", "w", "c"))]
    bias = values(4, seed=1)
    proto = model(nodes, constants(w=KERNEL, b=bias.astype(np.float64)))
    np.testing.assert_array_equal(layer_of(tmp_path, proto).weights.bias, bias)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_weights_left_in_float32_are_rounded_to_the_type_of_the_input(name: str, tmp_path: Path) -> None:
    half = np.dtype(getattr(ml_dtypes, name, name))
    inputs = [info("x", ["N", 3, 8, 8], helper.np_dtype_to_tensor_dtype(half))]
    bias = values(4, seed=1)
    proto = model([conv(inputs=("x", "w", "b"))], constants(w=KERNEL, b=bias), inputs=inputs)
    layer = layer_of(tmp_path, proto)
    assert layer.spec.data_type == name
    np.testing.assert_array_equal(layer.weights.kernel, KERNEL.astype(half).astype(np.float32))
    np.testing.assert_array_equal(layer.weights.bias, bias.astype(half).astype(np.float32))


def test_weights_too_large_for_the_type_of_the_input_are_the_reason(tmp_path: Path) -> None:
    inputs = [info("x", ["N", 3, 8, 8], onnx.TensorProto.FLOAT16)]
    with pytest.raises(CheckpointError, match="weights are too large for the float16 of its input"):
        read_checkpoint(save(tmp_path, model([conv()], constants(w=KERNEL * 1e6), inputs=inputs)))
