"""ONNX reader: activations and residuals after a layer become epilogue steps, in graph order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import AddResidual, Clip, HardSwish, LeakyRelu, Quantize, Scale
from tests.unit.onnx_models import (
    Shape,
    assert_layer_computes_its_output,
    constants,
    info,
    layer_of,
    model,
    node,
    save,
    values,
)

SQUARE = values(3, 3, 3, 3)
"""Kernels that keep x's shape with a padding of 1."""
RELU = Clip(low=0.0)
SLOPE = float(np.float32(0.01))


def conv(x: str = "x", y: str = "c", name: str = "conv", w: str = "w") -> onnx.NodeProto:
    return node("Conv", f"{x} {w}", y, name, pads=[1, 1, 1, 1])


def rounding(x: str, y: str) -> list[onnx.NodeProto]:
    """The nodes that round x to multiples of s."""
    return [node("QuantizeLinear", f"{x} s z", f"{y}_integers"), node("DequantizeLinear", f"{y}_integers s z", y)]


def after_conv(
    *nodes: onnx.NodeProto, opset: int = 17, input_shape: Shape = ("N", 3, 8, 8), **arrays: Any
) -> onnx.ModelProto:
    tensors = constants(**{"w": SQUARE, **arrays})
    inputs = [info("x", input_shape), info("r", input_shape)]
    return model([conv(), *nodes], tensors, inputs=inputs, opset=opset)


ACTIVATIONS: list[tuple[list[onnx.NodeProto], dict[str, Any], tuple[Any, ...], int]] = [
    ([node("Relu", "c", "y")], {}, (RELU,), 17),
    ([node("Clip", "c l h", "y")], {"l": -0.5, "h": 6.0}, (Clip(-0.5, 6.0),), 17),
    ([node("Clip", "c l", "y")], {"l": 0.25}, (Clip(low=0.25),), 17),
    ([node("Clip", "c  h", "y")], {"h": 1.0}, (Clip(high=1.0),), 17),
    ([node("Clip", "c l h", "y")], {"l": -np.inf, "h": 2.0}, (Clip(high=2.0),), 17),
    ([node("Clip", "c", "y")], {}, (), 17),
    ([node("Clip", "c", "y", min=0.0, max=6.0)], {}, (Clip(0.0, 6.0),), 10),
    ([node("LeakyRelu", "c", "y")], {}, (LeakyRelu(SLOPE),), 17),
    ([node("LeakyRelu", "c", "y", alpha=0.25)], {}, (LeakyRelu(0.25),), 17),
    ([node("PRelu", "c s", "y")], {"s": np.full((1, 1, 1), 0.25, np.float32)}, (LeakyRelu(0.25),), 17),
    (
        [node("Relu", "c", "d"), node("Identity", "d", "e"), node("Clip", "e  h", "y")],
        {"h": 1.0},
        (RELU, Clip(high=1.0)),
        17,
    ),
    ([node("Add", "c r", "d"), node("Relu", "d", "y")], {}, (AddResidual(), RELU), 17),
    ([node("Add", "r c", "y")], {}, (AddResidual(),), 17),
    (
        [node("Relu", "c", "d"), node("Add", "r d", "e"), node("LeakyRelu", "e", "y")],
        {},
        (RELU, AddResidual(), LeakyRelu(SLOPE)),
        17,
    ),
    ([node("Mul", "c k", "d"), node("Add", "d r", "e"), node("Relu", "e", "y")], {"k": 2.0}, (AddResidual(), RELU), 17),
    ([node("Add", "c x", "y")], {}, (AddResidual(),), 17),
    (
        [node("Relu", "c", "d"), node("Mul", "s d", "e"), node("Add", "e t", "y")],
        {"s": 1.5, "t": np.full((1, 1), -0.25, np.float32)},
        (RELU, Scale(1.5, -0.25)),
        17,
    ),
    (
        [node("HardSwish", "c", "d"), node("Sub", "one d", "e"), node("Add", "e r", "f"), node("Div", "f s", "y")],
        {"s": 2.0, "one": 1.0},
        (HardSwish(float(np.float32(1 / 6)), 0.5), Scale(-1.0, 1.0), AddResidual(), Scale(0.5, 0.0)),
        17,
    ),
    (
        [node("Relu", "c", "d"), *rounding("d", "e"), node("Add", "e r", "f"), *rounding("f", "y")],
        {"s": 0.0625, "z": np.array(3, np.uint8)},
        (RELU, Quantize(0.0625, -3, 252), AddResidual(), Quantize(0.0625, -3, 252)),
        17,
    ),
    (
        rounding("c", "y"),
        {"s": np.array([0.03125], np.float32), "z": np.array([-8], np.int8)},
        (Quantize(0.03125, -120, 135),),
        17,
    ),
    (
        [node("QuantizeLinear", "c s", "q"), node("DequantizeLinear", "q s", "y")],
        {"s": 0.03125},
        (Quantize(0.03125, 0, 255),),
        17,
    ),
]


@pytest.mark.parametrize(("nodes", "arrays", "epilogue", "opset"), ACTIVATIONS)
def test_what_follows_a_sum_is_computed_with_it_in_graph_order(
    nodes: list[onnx.NodeProto], arrays: dict[str, Any], epilogue: tuple[Any, ...], opset: int, tmp_path: Path
) -> None:
    proto = after_conv(*nodes, opset=opset, **arrays)
    layer = layer_of(tmp_path, proto)
    assert layer.spec.epilogue == epilogue
    assert (layer.name, layer.input, layer.output) == ("conv", "x", "y")
    assert len(layer.folded) == len(nodes)
    x, r = values(2, 3, 8, 8, seed=2), values(2, 3, 8, 8, seed=3)
    assert_layer_computes_its_output(layer, proto, x=x, r=r)


def test_a_layer_says_what_is_computed_with_it_and_what_it_adds(tmp_path: Path) -> None:
    nodes = [node("Mul", "c k", "d", "scale"), node("Add", "d r", "e", "plus"), node("Relu", "e", "y")]
    layer = layer_of(tmp_path, after_conv(*nodes, k=2.0))
    assert layer.folded == ("Mul scale", "Add plus", "Relu y")
    assert layer.residual == "r"


NOT_FUSED: list[tuple[list[onnx.NodeProto], dict[str, Any]]] = [
    ([node("Exp", "c", "y")], {}),
    ([node("Clip", "c l h", "y")], {"l": 2.0, "h": 1.0}),
    ([node("Clip", "c l", "y")], {"l": np.nan}),
    ([node("Clip", "c l", "y")], {"l": np.inf}),
    ([node("ReduceMax", "r", "l", keepdims=0), node("Clip", "c l", "y")], {}),
    ([node("LeakyRelu", "c", "y", alpha=float("inf"))], {}),
    ([node("PRelu", "c s", "y")], {"s": values(3, 1, 1)}),
    ([node("PRelu", "c r", "y")], {}),
    ([node("PRelu", "r c", "y")], {}),
    ([node("Add", "c c", "y")], {}),
    ([node("Add", "c k", "y")], {"k": values(8)}),
    ([node("Sub", "c r", "y")], {}),
    ([node("Relu", "c", "y"), node("Exp", "c", "z")], {}),
    ([node("Relu", "c", "y", domain="vendor")], {}),
    ([node("QuantizeLinear", "c s", "q"), node("DequantizeLinear", "q t", "y")], {"s": 0.5, "t": 0.25}),
    (
        [node("QuantizeLinear", "c s", "q"), node("DequantizeLinear", "q s z", "y")],
        {"s": 0.5, "z": np.array(1, np.uint8)},
    ),
    (rounding("c", "y"), {"s": np.full(3, 0.5, np.float32), "z": np.zeros(3, np.int8)}),
    (rounding("c", "y"), {"s": 0.0, "z": np.array(0, np.int8)}),
    (rounding("c", "y"), {"s": np.inf, "z": np.array(0, np.int8)}),
    (rounding("c", "y"), {"s": 1e-44, "z": np.array(0, np.int8)}),
    ([*rounding("c", "y"), node("Identity", "y_integers", "other")], {"s": 0.5, "z": np.array(0, np.int8)}),
]


@pytest.mark.parametrize(("nodes", "arrays"), NOT_FUSED)
def test_what_the_kernel_cannot_compute_stays_outside(
    nodes: list[onnx.NodeProto], arrays: dict[str, Any], tmp_path: Path
) -> None:
    proto = after_conv(*nodes, **arrays)
    proto.opset_import.append(onnx.helper.make_opsetid("vendor", 1))
    layer = layer_of(tmp_path, proto)
    assert (layer.output, layer.folded, layer.residual, layer.spec.epilogue) == ("c", (), "", ())


@pytest.mark.parametrize("shape", [["N", 3, 8, 1], [1, 3, 8, 8], ["M", 3, 8, 8], [3, 8, 8], ["N", 3, None, 8], None])
def test_a_tensor_that_may_have_another_shape_is_no_residual(shape: Shape, tmp_path: Path) -> None:
    proto = model(
        [conv(), node("Add", "c r", "y")], constants(w=SQUARE), inputs=[info("x", ["N", 3, 8, 8]), info("r", shape)]
    )
    assert layer_of(tmp_path, proto).output == "c"


@pytest.mark.parametrize("batch", ["N", None, 4])
def test_a_residual_of_an_equal_batch_of_any_size_is_added(batch: Any, tmp_path: Path) -> None:
    nodes = [conv("x", "c"), node("Exp", "x", "s"), node("Add", "c s", "y")]
    proto = model(nodes, constants(w=SQUARE), inputs=[info("x", [batch, 3, 8, 8])])
    assert layer_of(tmp_path, proto).residual == "s"


def test_a_second_residual_is_left(tmp_path: Path) -> None:
    proto = after_conv(node("Add", "c r", "d"), node("Add", "d x", "y"))
    layer = layer_of(tmp_path, proto)
    assert (layer.output, layer.residual) == ("d", "r")


def test_what_depends_on_the_layer_is_not_its_residual(tmp_path: Path) -> None:
    proto = after_conv(node("Exp", "c", "s"), node("Add", "c s", "y"))
    assert layer_of(tmp_path, proto).output == "c"


def layers_of(folder: Path, proto: onnx.ModelProto) -> dict[str, Layer]:
    return {layer.name: layer for layer in read_checkpoint(save(folder, proto)).layers}


@pytest.mark.parametrize("operands", ["a b", "b a"])
def test_the_later_of_two_equally_deep_layers_takes_the_add(operands: str, tmp_path: Path) -> None:
    nodes = [conv("x", "a", "first"), conv("x", "b", "second"), node("Add", operands, "z"), node("Relu", "z", "y")]
    layers = layers_of(tmp_path, model(nodes, constants(w=SQUARE)))
    assert list(layers) == ["first", "second"]
    assert (layers["first"].output, layers["first"].spec.epilogue) == ("a", ())
    assert (layers["second"].residual, layers["second"].spec.epilogue) == ("a", (AddResidual(), RELU))


def test_of_two_layers_that_are_added_up_the_deeper_one_adds(tmp_path: Path) -> None:
    nodes = [
        conv("x", "a", "main1"),
        conv("a", "b", "main2"),
        node("Identity", "w", "v"),
        node("Identity", "v", "u"),
        conv("x", "c", "shortcut", w="u"),
        node("Add", "b c", "y"),
    ]
    layers = layers_of(tmp_path, model(nodes, constants(w=SQUARE)))
    assert list(layers) == ["main1", "shortcut", "main2"]
    assert (layers["shortcut"].residual, layers["main2"].residual) == ("", "c")


def test_the_earlier_layer_adds_if_the_later_one_cannot(tmp_path: Path) -> None:
    nodes = [conv("x", "a", "first"), conv("x", "b", "second"), node("Exp", "b", "s"), node("Add", "a s", "y")]
    layers = layers_of(tmp_path, model(nodes, constants(w=SQUARE)))
    assert (layers["second"].output, layers["first"].residual) == ("b", "s")


def test_layers_come_in_an_order_in_which_their_residuals_are_ready(tmp_path: Path) -> None:
    nodes = [conv("x", "a", "first"), conv("x", "b", "second"), node("Exp", "b", "s"), node("Add", "a s", "y")]
    assert list(layers_of(tmp_path, model(nodes, constants(w=SQUARE)))) == ["second", "first"]


def test_a_residual_block_becomes_two_layers(tmp_path: Path) -> None:
    nodes = [
        conv("x", "a", "conv1"),
        node("Relu", "a", "b"),
        conv("b", "c", "conv2"),
        node("Add", "c x", "d"),
        node("Relu", "d", "y"),
    ]
    proto = model(nodes, constants(w=SQUARE))
    first, second = read_checkpoint(save(tmp_path, proto)).layers
    assert (first.output, first.spec.epilogue) == ("b", (RELU,))
    assert (second.input, second.output, second.residual) == ("b", "y", "x")
    assert second.spec.epilogue == (AddResidual(), RELU)


def test_residual_rows_and_what_is_folded_change_the_digest(tmp_path: Path) -> None:
    def digest(*nodes: onnx.NodeProto, shape: Shape = ("N", 7, 3)) -> str:
        inputs = [info(name, shape) for name in ("x", "r", "q")]
        proto = model([node("MatMul", "x w", "c", "fc"), *nodes], constants(w=values(3, 3)), inputs=inputs)
        return read_checkpoint(save(tmp_path, proto)).digest

    digests = [
        digest(node("Add", "c r", "y")),
        digest(node("Add", "c q", "y")),
        digest(node("Add", "c q", "y"), shape=("N", 8, 3)),
        digest(node("Identity", "c", "d", "pass"), node("Add", "d q", "y"), shape=("N", 8, 3)),
    ]
    assert len(set(digests)) == 4
