"""ONNX reader: linear layers before a Transpose to channels first become 1x1 convolutions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from codegen.frontend.onnx.fuse.channels_first import MOST_INPUTS
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.layer_spec import AddResidual, Conv2d, Linear
from tests.unit.onnx_models import Shape, constants, info, model, node, save, values
from tests.unit.test_residual_graph import outputs_of

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
IMAGE = ("N", 6, 5, 7)


def block(*nodes: onnx.NodeProto, x: Shape = IMAGE, **arrays: Any) -> onnx.ModelProto:
    """A model from the inputs x and z [N, 6, 5, 7] to y, with weights u [6, 24] and w [24, 6]."""
    tensors = {"u": values(6, 24), "w": values(24, 6, seed=1), **arrays}
    return model(list(nodes), constants(**tensors), inputs=[info("input", x), info("z", x)], opset=20)


TO_LAST = node("Transpose", "input", "l", perm=LAST)
NORM = node("LayerNormalization", "l s", "n", axis=-1)
UP = [node("MatMul", "n u", "a", "up"), node("Add", "a b", "c"), node("Gelu", "c", "d")]
DOWN = [node("MatMul", "d w", "e", "down"), node("Add", "f e", "g")]
SCALED = [node("Transpose", "g", "h", perm=FIRST), node("Mul", "k h", "i"), node("Add", "input i", "y")]
NUMBERS = {"s": values(6), "b": values(24), "f": values(6, seed=2), "k": values(6, 1, 1, seed=3)}
CONV_NEXT = block(TO_LAST, NORM, *UP, *DOWN, *SCALED, **NUMBERS)
MIXER = model(
    [
        node("LayerNormalization", "input s", "n", axis=-1),
        node("Transpose", "n", "t", perm=[0, 2, 1]),
        node("MatMul", "t u", "a", "up"),
        # GELU as older exporters write it.
        node("Add", "a b", "c"),
        node("Mul", "c half", "p"),
        node("Mul", "c root", "q"),
        node("Erf", "q", "v"),
        node("Add", "v one", "o"),
        node("Mul", "p o", "d"),
        node("MatMul", "d w", "e", "down"),
        node("Transpose", "e", "h", perm=[0, 2, 1]),
        node("Add", "h input", "y"),
    ],
    constants(s=values(8), u=values(6, 24), b=values(1, 1, 24), w=values(24, 6), half=0.5, one=1, root=0.5**0.5),
    inputs=[info("input", ("N", 6, 8))],
)


def read(folder: Path, proto: onnx.ModelProto) -> Checkpoint:
    return read_checkpoint(save(folder, proto))


def operators_of_the_residual_graph(checkpoint: Checkpoint, proto: onnx.ModelProto) -> Counter[str]:
    """Operators of the residual graph, after checking that it and the layers compute what the model does."""
    assert checkpoint.residual_graph is not None
    sizes = [each.dim_value or 2 for each in proto.graph.input[0].type.tensor_type.shape.dim]
    given = {each.name: values(*sizes, seed=i) for i, each in enumerate(proto.graph.input)}
    [expected] = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    rest = checkpoint.residual_graph.with_layers(checkpoint.layers)
    found = outputs_of(rest, checkpoint, given["input"], **{n: each for n, each in given.items() if n != "input"})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    return Counter(each.op_type for each in onnx.load_model_from_string(rest).graph.node)


def test_a_convnext_block_ends_with_scale_and_add_in_its_last_layer(tmp_path: Path) -> None:
    checkpoint = read(tmp_path, CONV_NEXT)
    up, down = checkpoint.layers
    assert (up.name, down.name) == ("up", "down")
    assert isinstance(up.spec, Conv2d)
    assert isinstance(down.spec, Conv2d)
    assert up.spec.output_shape == (24, 5, 7)
    assert down.spec.epilogue == (AddResidual(),)
    assert (down.residual, down.output) == ("input", "y")
    rest = operators_of_the_residual_graph(checkpoint, CONV_NEXT)
    assert rest == {"Transpose": 2, "LayerNormalization": 1, "Layer": 2}


def test_transposes_around_the_token_mixing_of_a_mixer_go_with_its_add(tmp_path: Path) -> None:
    checkpoint = read(tmp_path, MIXER)
    assert [layer.spec.output_shape for layer in checkpoint.layers] == [(24, 1, 8), (6, 1, 8)]
    assert operators_of_the_residual_graph(checkpoint, MIXER) == {"LayerNormalization": 1, "Layer": 2}


TO_FIRST = node("Transpose", "g", "y", perm=FIRST)
LEFT = {
    "what is not added": block(TO_LAST, NORM, *UP, *DOWN, TO_FIRST, **NUMBERS),
    "a width that is not known": block(TO_LAST, NORM, *UP, *DOWN, *SCALED, x=("N", 6, 5, "W"), **NUMBERS),
    "another order of axes": block(
        TO_LAST,
        NORM,
        *UP,
        *DOWN,
        node("Transpose", "g", "h", perm=[0, 3, 2, 1]),
        node("Transpose", "z", "r", perm=[0, 1, 3, 2]),
        node("Add", "h r", "y"),
        **NUMBERS,
    ),
    "what is read in between": block(
        TO_LAST, NORM, *UP, *DOWN, *SCALED[:2], node("ReduceMean", "e", "m"), node("Add", "i m", "y"), **NUMBERS
    ),
    "a constant for each column": block(
        TO_LAST, NORM, *UP, *DOWN[:1], node("Add", "e f", "g"), *SCALED, **{**NUMBERS, "f": values(7, 6)}
    ),
    "a softmax over the channels": block(
        TO_LAST, NORM, *UP, node("MatMul", "d w", "e", "down"), node("Softmax", "e", "g"), *SCALED, **NUMBERS
    ),
}


@pytest.mark.parametrize("what", LEFT)
def test_layers_stay_linear_where_no_pass_is_saved(tmp_path: Path, what: str) -> None:
    checkpoint = read(tmp_path, LEFT[what])
    assert [type(layer.spec) for layer in checkpoint.layers] == [Linear, Linear]
    if what != "a width that is not known":
        operators_of_the_residual_graph(checkpoint, LEFT[what])


def test_products_of_many_inputs_stay_linear_layers(tmp_path: Path) -> None:
    nodes = [
        TO_LAST,
        node("Relu", "l", "k"),
        node("MatMul", "k w", "e", "fc"),
        node("Transpose", "e", "h", perm=FIRST),
        node("Add", "h input", "y"),
    ]
    for inputs, kind in ((MOST_INPUTS, Conv2d), (MOST_INPUTS + 1, Linear)):
        weights = constants(w=values(inputs, inputs))
        proto = model(nodes, weights, inputs=[info("input", ("N", inputs, 2, 2))])
        [layer] = read(tmp_path, proto).layers
        assert isinstance(layer.spec, kind)


def test_weights_and_scales_that_the_model_computes_are_turned_too(tmp_path: Path) -> None:
    nodes = [TO_LAST, NORM, node("Identity", "v", "u2"), node("MatMul", "n u2", "a", "up"), *UP[1:], *DOWN, *SCALED]
    proto = block(*nodes, **NUMBERS, v=values(6, 24, seed=5))
    checkpoint = read(tmp_path, proto)
    assert {type(layer.spec) for layer in checkpoint.layers} == {Conv2d}
    operators_of_the_residual_graph(checkpoint, proto)
