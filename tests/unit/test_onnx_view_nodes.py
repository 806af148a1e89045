"""ONNX reader: nodes after a layer are fused across view nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.ir.layer_spec import AddResidual, Clip, Gelu, Step
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

RELU = Clip(low=0.0)


def shape(*sizes: int) -> np.ndarray[Any, Any]:
    return np.array(sizes, np.int64)


def conv(*nodes: onnx.NodeProto, r: Shape = (2, 4, 9), **arrays: Any) -> onnx.ModelProto:
    """A convolution from x [2, 3, 5, 5] to c [2, 4, 3, 3]."""
    tensors = constants(w=values(4, 3, 3, 3), **arrays)
    inputs = [info("x", (2, 3, 5, 5)), info("r", r)]
    return model([node("Conv", "x w", "c", "conv"), *nodes], tensors, inputs=inputs)


def product(*nodes: onnx.NodeProto, r: Shape = (2, 5, 4), **arrays: Any) -> onnx.ModelProto:
    """A product from x [10, 3] to c [10, 4]."""
    tensors = constants(w=values(3, 4), **arrays)
    inputs = [info("x", (10, 3)), info("r", r)]
    return model([node("MatMul", "x w", "c", "fc"), *nodes], tensors, inputs=inputs)


FLAT = {"s": shape(2, 4, 9)}
SEQUENCE = {"s": shape(2, 5, 4)}
TAKEN: dict[str, tuple[onnx.ModelProto, tuple[Step, ...]]] = {
    "an Add behind a Reshape": (
        product(node("Reshape", "c s", "d"), node("Add", "d r", "y"), **SEQUENCE), (AddResidual(),)
    ),
    "an Add behind the flattened map": (
        conv(node("Reshape", "c s", "d"), node("Add", "r d", "y"), **FLAT), (AddResidual(),)
    ),
    "a factor for each kernel, then an Add": (
        conv(node("Reshape", "c s", "d"), node("Mul", "d k", "e"), node("Add", "e r", "y"), **FLAT, k=values(4, 1)),
        (AddResidual(),),
    ),
    "a factor for each output of a row": (
        product(node("Reshape", "c s", "d"), node("Mul", "d k", "e"), node("Add", "e r", "y"), **SEQUENCE, k=values(4)),
        (AddResidual(),),
    ),
    "a bias and an activation": (
        product(
            node("Unsqueeze", "c a", "d"), node("Add", "d b", "e"), node("Gelu", "e", "y"), a=shape(0), b=values(4)
        ),
        (Gelu(),),
    ),
    "two reshapes and an Identity": (
        conv(node("Flatten", "c", "d"), node("Identity", "d", "e"), node("Reshape", "e s", "f"), node("Relu", "f", "y"),
             **FLAT), (RELU,)
    ),
    "a Squeeze": (
        conv(node("Unsqueeze", "c a", "d"), node("Squeeze", "d a", "e"), node("Relu", "e", "y"), a=shape(1)), (RELU,)
    ),
    "a Transpose that moves an axis of one element": (
        conv(node("Reshape", "c s", "d"), node("Transpose", "d", "e", perm=[1, 0, 2, 3]), node("Add", "e r", "y"),
             s=shape(1, 2, 4, 9), r=(2, 1, 4, 9)), (AddResidual(),)
    ),
    "an activation on both sides": (
        conv(
            node("Relu", "c", "d"),
            node("Reshape", "d s", "e"),
            node("Add", "e r", "f"),
            node("Relu", "f", "y"),
            **FLAT,
        ),
        (RELU, AddResidual(), RELU),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_what_follows_a_reshape_is_computed_with_the_layer(name: str, tmp_path: Path) -> None:
    proto, steps = TAKEN[name]
    proto.opset_import[0].version = 20
    layer = layer_of(tmp_path, proto)
    assert (layer.output, layer.spec.epilogue) == ("y", steps)
    assert len(layer.folded) == len(proto.graph.node) - 1
    arrays = {each.name: [size.dim_value for size in each.type.tensor_type.shape.dim] for each in proto.graph.input}
    inputs = {name: values(*size, seed=i) for i, (name, size) in enumerate(arrays.items())}
    assert_layer_computes_its_output(layer, proto, **inputs)


LEFT: dict[str, onnx.ModelProto] = {
    "a Reshape that nothing follows": conv(node("Reshape", "c s", "y"), **FLAT),
    "a Reshape and an Identity": conv(node("Reshape", "c s", "d"), node("Identity", "d", "y"), **FLAT),
    "what another node reads too": conv(
        node("Reshape", "c s", "d"), node("Relu", "d", "e"), node("Exp", "c", "f"), node("Flatten", "f", "y"), **FLAT
    ),
    "a residual of another shape": conv(node("Reshape", "c s", "d"), node("Add", "d r", "y"), **FLAT, r=(1, 4, 9)),
    "a factor for each of other elements": conv(
        node("Reshape", "c s", "d"), node("Mul", "d k", "y"), s=shape(2, 9, 4), k=values(4)
    ),
    "a factor for each kernel of another axis": conv(
        node("Reshape", "c s", "d"), node("Mul", "d k", "y"), s=shape(2, 4, 3, 3), k=values(4, 3, 3)
    ),
    "a Transpose that moves elements": conv(
        node("Transpose", "c", "d", perm=[0, 2, 3, 1]), node("Add", "d r", "y"), r=(2, 3, 3, 4)
    ),
    "a factor for each column behind a Transpose": conv(
        node("Transpose", "c", "d", perm=[0, 1, 3, 2]), node("Mul", "d k", "y"), k=values(3)
    ),
    "the shape of another tensor": conv(node("Reshape", "r c", "y")),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_reshape_before_no_fused_node_is_not_fused(name: str, tmp_path: Path) -> None:
    proto = LEFT[name]
    layer = layer_of(tmp_path, proto)
    assert (layer.output, layer.folded, layer.residual, layer.spec.epilogue) == ("c", (), "", ())


def product_with_residual(sizes: Shape) -> onnx.ModelProto:
    """A product of rows, seen as a matrix and as rows again, to which an input of these sizes is added."""
    nodes = [
        node("MatMul", "x w", "c", "fc"),
        node("Reshape", "c s", "d"),
        node("Reshape", "d t", "e"),
        node("Add", "e r", "y"),
    ]
    tensors = constants(w=values(3, 4), s=shape(-1, 4), t=shape(-1, 7, 4))
    return model(nodes, tensors, inputs=[info("x", ("N", 7, 3)), info("r", sizes)])


@pytest.mark.parametrize("sizes", [("M", 7, 4), (5, 7, 4), (None, 7, 4), ("N", 4, 7), ("N", 7, 4, 1)])
def test_a_residual_behind_a_reshape_has_as_many_elements(sizes: Shape, tmp_path: Path) -> None:
    assert layer_of(tmp_path, product_with_residual(sizes)).output == "c"


def test_the_rows_of_a_product_are_kept_behind_a_reshape(tmp_path: Path) -> None:
    layer = layer_of(tmp_path, product_with_residual(("N", 7, 4)))
    assert layer.rows == 7
    assert (layer.output, layer.residual) == ("y", "r")  # as many elements, so N images again
