"""ONNX reader: constant factors and summands after a layer are folded into its weights and biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from codegen.frontend.onnx.extract.weights import rounded
from codegen.frontend.onnx.fuse.folding import Affine, arithmetic, folded
from codegen.ir.layer_spec import DataType
from tests.unit.onnx_models import (
    Shape,
    assert_layer_computes_its_output,
    constants,
    info,
    layer_of,
    model,
    node,
    values,
)

KERNEL = values(4, 3, 3, 3)
BIAS = values(4, seed=1)
PER_KERNEL = values(4, seed=3)
NORMAL = {"scale": values(4, seed=4), "shift": values(4, seed=5), "mean": values(4, seed=6)}
VARIANCE = np.abs(values(4, seed=7)) + np.float32(0.1)


def after_conv(*nodes: onnx.NodeProto, input_shape: Shape = ("N", 3, 8, 8), **arrays: Any) -> onnx.ModelProto:
    """A model of a convolution x -> c and nodes from c to y."""
    return model(
        [node("Conv", "x w b", "c", "conv"), *nodes],
        constants(**{"w": KERNEL, "b": BIAS, **arrays}),
        inputs=[info("x", input_shape)],
    )


def normalisation(x: str = "c", y: str = "y", **attributes: Any) -> onnx.NodeProto:
    return node("BatchNormalization", f"{x} scale shift mean variance", y, "bn", **attributes)


FOLDED: list[tuple[list[onnx.NodeProto], dict[str, Any]]] = [
    ([normalisation()], {**NORMAL, "variance": VARIANCE}),
    ([normalisation(epsilon=0.3)], {**NORMAL, "variance": VARIANCE}),
    ([node("Mul", "c k", "y")], {"k": PER_KERNEL[:, None, None]}),
    ([node("Mul", "k c", "y")], {"k": PER_KERNEL[None, :, None, None]}),
    ([node("Add", "c k", "y")], {"k": 0.5}),
    ([node("Sub", "c k", "y")], {"k": PER_KERNEL[:, None, None]}),
    ([node("Sub", "k c", "y")], {"k": PER_KERNEL[:, None, None]}),
    ([node("Div", "c k", "y")], {"k": PER_KERNEL[:, None, None]}),
    ([node("Identity", "c", "y")], {}),
    ([node("Dropout", "c", "y")], {}),
    ([node("Dropout", "c ratio train", "y")], {"ratio": 0.5, "train": np.array(False)}),
    ([node("Add", "c k", "d"), node("Mul", "d k", "y")], {"k": PER_KERNEL[:, None, None]}),
    ([node("Mul", "c k", "d"), node("Add", "k d", "y")], {"k": PER_KERNEL[:, None, None]}),
    ([node("Sub", "k c", "d"), normalisation("d")], {**NORMAL, "variance": VARIANCE, "k": 2.0}),
]


@pytest.mark.parametrize(("nodes", "arrays"), FOLDED)
def test_what_is_folded_into_a_convolution_is_computed_by_it(
    nodes: list[onnx.NodeProto], arrays: dict[str, Any], tmp_path: Path
) -> None:
    proto = after_conv(*nodes, **arrays)
    layer = layer_of(tmp_path, proto)
    assert layer.output == "y"
    assert layer.folded == tuple(f"{each.op_type} {each.name or each.output[0]}" for each in nodes)
    assert layer.spec.epilogue == ()
    assert_layer_computes_its_output(layer, proto, x=values(2, 3, 8, 8, seed=2))


@pytest.mark.parametrize(
    ("operator", "weights", "input_shape", "constant"),
    [
        ("Conv", values(4, 3, 5), (2, 3, 9), PER_KERNEL[:, None]),
        ("ConvTranspose", values(3, 4, 3, 3), (2, 3, 5, 5), PER_KERNEL[:, None, None]),
        ("Gemm", values(3, 4), (2, 3), PER_KERNEL),
        ("Gemm", values(3, 4), (2, 3), PER_KERNEL[None]),
        ("MatMul", values(3, 4), (2, 7, 3), PER_KERNEL[None, None]),
        ("MatMul", values(3, 4), (3,), PER_KERNEL),
    ],
)
def test_every_kind_of_layer_takes_up_constants_per_kernel(
    operator: str, weights: Any, input_shape: tuple[int, ...], constant: Any, tmp_path: Path
) -> None:
    nodes = [node(operator, "x w", "a"), node("Mul", "a k", "c"), node("Sub", "k c", "y")]
    proto = model(nodes, constants(w=weights, k=constant), inputs=[info("x", input_shape)])
    layer = layer_of(tmp_path, proto)
    assert layer.output == "y"
    assert_layer_computes_its_output(layer, proto, x=values(*input_shape, seed=2))


def test_a_normalisation_after_a_gemm_is_folded(tmp_path: Path) -> None:
    arrays = {**NORMAL, "variance": VARIANCE, "w": values(3, 4)}
    proto = model([node("Gemm", "x w", "c"), normalisation()], constants(**arrays), inputs=[info("x", (2, 3))])
    layer = layer_of(tmp_path, proto)
    assert layer.folded == ("BatchNormalization bn",)
    assert_layer_computes_its_output(layer, proto, x=values(2, 3, seed=2))


def test_a_normalisation_of_the_rows_of_a_sequence_is_not_folded(tmp_path: Path) -> None:
    """The channels of the normalisation are the second axis, the layer's output channels the last."""
    arrays = {**NORMAL, "variance": VARIANCE, "w": values(3, 4)}
    proto = model([node("MatMul", "x w", "c"), normalisation()], constants(**arrays), inputs=[info("x", (2, 4, 3))])
    assert layer_of(tmp_path, proto).output == "c"


NOT_FOLDED: list[tuple[list[onnx.NodeProto], dict[str, Any]]] = [
    ([node("Mul", "c k", "y")], {"k": values(6)}),
    ([node("Mul", "c k", "y")], {"k": values(4, 6, 6)}),
    ([node("Mul", "c k", "y")], {"k": values(1, 1, 4, 1, 1)}),
    ([node("Mul", "c c", "y")], {}),
    ([node("Div", "k c", "y")], {"k": 2.0}),
    ([node("Div", "c k", "y")], {"k": 0.0}),
    ([node("Mul", "c k", "y")], {"k": np.inf}),
    ([node("Mul", "c k", "y")], {"k": 3e38}),
    ([node("Add", "c k", "y")], {"k": np.nan}),
    ([node("Mul", "c k", "y")], {"k": np.array([0x7F800001], np.uint32).view(np.float32)}),  # a signalling NaN
    ([node("Pow", "c k", "y")], {"k": 2.0}),
    ([node("Mul", "c k", "y")], {"k": np.array(["text"], object)}),
    ([normalisation()], {**NORMAL, "variance": -VARIANCE}),
    ([normalisation(training_mode=1)], {**NORMAL, "variance": VARIANCE}),
    ([node("Dropout", "c ratio train", "y")], {"ratio": 0.5, "train": np.array(True)}),
    ([node("Dropout", "c", "d mask"), node("Identity", "mask", "y")], {}),
    ([node("Mul", "c k", "y", domain="vendor")], {"k": 2.0}),
]


@pytest.mark.parametrize(("nodes", "arrays"), NOT_FOLDED)
def test_what_cannot_be_folded_leaves_the_layer_as_it_is(
    nodes: list[onnx.NodeProto], arrays: dict[str, Any], tmp_path: Path
) -> None:
    proto = after_conv(*nodes, **arrays)
    proto.opset_import.append(helper.make_opsetid("vendor", 1))
    layer = layer_of(tmp_path, proto)
    assert (layer.output, layer.folded, layer.spec.epilogue) == ("c", (), ())
    np.testing.assert_array_equal(layer.weights.kernel, KERNEL)
    np.testing.assert_array_equal(layer.weights.bias, BIAS)


def test_a_normalisation_that_trains_by_its_outputs_is_not_folded(tmp_path: Path) -> None:
    bn = node("BatchNormalization", "c scale shift mean variance", "y m v", "bn")
    proto = after_conv(bn, **NORMAL, variance=VARIANCE)
    proto.opset_import[0].version = 13
    assert layer_of(tmp_path, proto).output == "c"


def test_a_constant_for_each_channel_after_an_activation_is_not_folded(tmp_path: Path) -> None:
    proto = after_conv(node("Relu", "c", "r"), node("Mul", "r k", "y"), k=PER_KERNEL[:, None, None])
    assert layer_of(tmp_path, proto).output == "r"


@pytest.mark.parametrize("factor", [np.inf, np.nan, 3e38])
def test_a_factor_after_an_activation_that_overflows_float32_is_not_fused(factor: float, tmp_path: Path) -> None:
    proto = after_conv(node("Relu", "c", "r"), node("Mul", "r two", "s"), node("Mul", "s k", "y"), two=2.0, k=factor)
    assert layer_of(tmp_path, proto).output == "s"


@pytest.mark.parametrize("reader", ["another node", "a sub-graph", "the model's user"])
def test_a_sum_that_something_else_reads_too_is_kept(reader: str, tmp_path: Path) -> None:
    proto = after_conv(node("Mul", "c k", "y"), k=2.0)
    if reader == "another node":
        proto.graph.node.append(node("Sigmoid", "c", "z"))
    elif reader == "a sub-graph":
        branches = [
            helper.make_graph([node("Identity", "c", name)], name, [], [info(name, None)]) for name in ("t", "e")
        ]
        proto.graph.input.append(info("flag", [], onnx.TensorProto.BOOL))
        proto.graph.node.append(node("If", "flag", "z", then_branch=branches[0], else_branch=branches[1]))
    else:
        proto.graph.output.append(info("c", None))
    assert layer_of(tmp_path, proto).output == "c"


def test_zero_weights_stay_zero_and_values_are_rounded_once(tmp_path: Path) -> None:
    kernel = KERNEL.copy()
    kernel[::2, 1] = 0
    proto = after_conv(
        node("Mul", "c k", "d"), node("Div", "d k", "e"), node("Sub", "k e", "y"), w=kernel, k=PER_KERNEL[:, None, None]
    )
    layer = layer_of(tmp_path, proto)
    assert not np.signbit(layer.weights.kernel[::2, 1]).any()
    np.testing.assert_array_equal(layer.weights.kernel == 0, kernel == 0)
    np.testing.assert_array_equal(layer.weights.kernel, 0 - kernel)  # times k / k in float32 would not be exact


def test_a_fold_that_overflows_half_precision_is_left(tmp_path: Path) -> None:
    arrays = {"w": KERNEL.astype(np.float16), "b": BIAS.astype(np.float16), "k": np.float16(60000).reshape(1)}
    proto = after_conv(node("Mul", "c k", "y"), **arrays)
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert layer_of(tmp_path, proto).output == "c"


FINITE = st.floats(-10, 10, width=32)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["Add", "Sub", "Mul"]), FINITE, st.booleans()), max_size=5), FINITE, FINITE)
def test_folding_in_any_order_computes_what_the_operators_do(
    operations: list[tuple[str, float, bool]], weight: float, bias: float
) -> None:
    x, affine = 1.5, Affine(np.ones(1), np.zeros(1))
    expected = weight * x + bias
    for operator, constant, first in operations:
        step = arithmetic(operator, np.array([constant]), first)
        assert step is not None
        affine = step.after(affine)
        a, b = (constant, expected) if first else (expected, constant)
        expected = {"Add": a + b, "Sub": a - b, "Mul": a * b}[operator]
    weights = folded(np.full((1, 1), weight, np.float32), np.array([bias]), 1.0, affine, "float32")
    assert weights is not None
    largest = 10.0 ** (len(operations) + 2)
    assert float(weights.kernel[0, 0]) * x + float(weights.bias[0]) == pytest.approx(expected, abs=1e-6 * largest)


def nearest(value: float, data_type: DataType) -> float:
    return float(rounded(np.array([value]), data_type)[0])


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        ("bfloat16", 1 + 2**-8, 1.0),  # a tie, to even
        ("bfloat16", 1 + 2**-8 + 2**-40, 1 + 2**-7),  # float32 on the way would make it a tie
        ("bfloat16", 1 + 3 * 2**-8, 1 + 2**-6),
        ("bfloat16", -(2.0**-133), -(2.0**-133)),
        ("bfloat16", 2.0**-134, 0.0),
        ("bfloat16", 3.4e38, np.inf),
        ("bfloat16", -1e300, -np.inf),
        ("bfloat16", np.inf, np.inf),
        ("float16", 1 + 2**-11 + 2**-40, 1 + 2**-10),
        ("float16", 65520.0, np.inf),
        ("float16", 65519.0, 65504.0),
        ("float32", 1 + 2**-24 + 2**-50, 1 + 2**-23),
    ],
)
def test_values_are_rounded_once_to_the_nearest_of_their_type(
    data_type: DataType, value: float, expected: float
) -> None:
    assert nearest(value, data_type) == expected


@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_is_rounded_as_float32_to_its_upper_half(value: float) -> None:
    bits = int(np.array([value], np.float32).view(np.uint32)[0])
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    assert nearest(value, "bfloat16") == np.array([upper], np.uint32).view(np.float32)[0]
