"""ONNX reader: factors and summands of a layer's input channels are folded into its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.ir.layer_spec import Clip
from tests.unit.onnx_models import (
    Shape,
    assert_layer_computes_its_output,
    constants,
    info,
    layer_of,
    model,
    node,
    pruned,
    tensor,
    values,
)

IMAGE: Shape = ("N", 6, 7, 7)
KERNEL = pruned(4, 6, 3, 3, seed=1)
CHANNELS = (6, 1, 1)
FACTOR, SUMMAND = values(*CHANNELS, seed=2), values(*CHANNELS, seed=3)
NORMAL = {"s": values(6, seed=4), "t": values(6, seed=5), "m": values(6, seed=6), "v": values(6, seed=7) ** 2 + 0.1}
NORM = node("BatchNormalization", "x s t m v", "n", "norm")


def before(*nodes: onnx.NodeProto, x: Shape = IMAGE, **arrays: Any) -> onnx.ModelProto:
    return model(list(nodes), constants(**{"w": KERNEL, **arrays}), inputs=[info("x", x)])


FOLDED: dict[str, onnx.ModelProto] = {
    "a normalisation": before(NORM, node("Conv", "n w", "y"), **NORMAL),
    "a normalisation before groups": before(
        NORM, node("Conv", "n w", "y", group=2), **{**NORMAL, "w": pruned(4, 3, 3, 3, seed=1)}
    ),
    "a factor before padding": before(
        node("Mul", "f x", "n"), node("Conv", "n w b", "y", pads=[1, 1, 1, 1]), f=FACTOR, b=values(4)
    ),
    "a factor before a transposed convolution": before(
        node("Div", "x f", "n"), node("ConvTranspose", "n w", "y", strides=[2, 2]), f=2.0, w=pruned(6, 4, 3, 3, seed=1)
    ),
    "an input centred and scaled": before(
        node("Sub", "x m", "c"), node("Div", "c f", "n"), node("Conv", "n w", "y"), m=SUMMAND, f=FACTOR
    ),
    "a difference from a number": before(node("Sub", "one x", "n"), node("Conv", "n w", "y"), one=1.0),
    "the end of a layer normalisation": before(
        node("Mul", "x f", "c"),
        node("Add", "c t", "n"),
        node("MatMul", "n w", "d"),
        node("Add", "d b", "e"),
        node("Relu", "e", "y"),
        x=("N", 5, 6),
        f=values(6, seed=2),
        t=values(6, seed=3),
        w=pruned(6, 4, seed=1),
        b=values(4),
    ),
    "rows before a Gemm": before(
        node("Add", "x t", "n"), node("Gemm", "n w", "y"), x=("N", 6), t=values(1, 6), w=pruned(6, 4, seed=1)
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_done_to_each_input_channel_is_folded_into_the_weights(name: str, tmp_path: Path) -> None:
    proto = FOLDED[name]
    layer = layer_of(tmp_path, proto)
    assert layer.input == "x"
    assert len(layer.folded) == len(proto.graph.node) - 1
    sizes = [dimension.dim_value or 2 for dimension in proto.graph.input[0].type.tensor_type.shape.dim]
    assert_layer_computes_its_output(layer, proto, x=values(*sizes, seed=9))


def test_pruned_weights_stay_zero(tmp_path: Path) -> None:
    layer = layer_of(tmp_path, FOLDED["a normalisation"])
    np.testing.assert_array_equal(layer.weights.kernel == 0, KERNEL == 0)


def test_a_normalisation_and_what_follows_the_layer_are_both_fused(tmp_path: Path) -> None:
    proto = before(NORM, node("Conv", "n w", "c"), node("Relu", "c", "y"), **NORMAL)
    layer = layer_of(tmp_path, proto)
    assert layer.spec.epilogue == (Clip(low=0.0),)
    assert layer.folded == ("BatchNormalization norm", "Relu y")


LEFT: dict[str, onnx.ModelProto] = {
    "a summand before padding": before(node("Add", "x t", "n"), node("Conv", "n w", "y", pads=[1, 1, 1, 1]), t=SUMMAND),
    "a summand before a transposed convolution": before(
        node("Add", "x t", "n"), node("ConvTranspose", "n w", "y"), t=SUMMAND, w=pruned(6, 4, 3, 3, seed=1)
    ),
    "a value per column": before(node("Mul", "x f", "n"), node("Conv", "n w", "y"), f=values(7)),
    "another reader": before(NORM, node("Conv", "n w", "y"), node("Exp", "n", "z"), **NORMAL),
    "too large a factor": before(node("Mul", "x f", "n"), node("Conv", "n w", "y"), f=3e38),
    "a quotient": before(node("Div", "one x", "n"), node("Conv", "n w", "y"), one=1.0),
    "a tensor that is broadcast": before(node("Mul", "x f", "n"), node("Conv", "n w", "y"), x=("N", 1, 7, 7), f=FACTOR),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_weights_cannot_do_is_left_before_the_layer(name: str, tmp_path: Path) -> None:
    assert layer_of(tmp_path, LEFT[name]).input == "n"


def test_a_summand_before_a_float16_layer_is_left(tmp_path: Path) -> None:
    nodes = [node("Mul", "x f", "m"), node("Add", "m t", "n"), node("Conv", "n w", "y")]
    tensors = [tensor(name, array.astype(np.float16)) for name, array in (("w", KERNEL), ("f", FACTOR), ("t", SUMMAND))]
    proto = model(nodes, tensors, inputs=[info("x", IMAGE, onnx.TensorProto.FLOAT16)])
    assert layer_of(tmp_path, proto).input == "n"
    proto.graph.node.pop(1)
    proto.graph.node[-1].input[0] = "m"
    assert layer_of(tmp_path, proto).input == "x"
