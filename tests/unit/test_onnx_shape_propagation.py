"""ONNX reader: shapes computed from other shapes are propagated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

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
INPUT = ["N", 3, 8, 10]
NUMBERS = {f"i{n}": np.array(n) for n in range(4)} | {f"a{n}": np.array([n]) for n in range(5)}
"""i2 is 2, a2 is [2]."""


def axis(number: int) -> list[onnx.NodeProto]:
    """Nodes that compute one dimension of x as d0, d1, ..."""
    return [node("Shape", "x", f"s{number}"), node("Gather", f"s{number} i{number}", f"d{number}", axis=0)]


def as_list(*names: str) -> list[onnx.NodeProto]:
    return [node("Unsqueeze", f"{name} a0", f"{name}_") for name in names]


SHUFFLE = [
    *(each for number in range(4) for each in axis(number)),
    node("Div", "d1 i3", "per_group"),
    *as_list("d0", "d2", "d3", "per_group"),
    node("Concat", "d0_ a3 per_group_ d2_ d3_", "grouped", axis=0),
    node("Reshape", "x grouped", "g"),
    node("Transpose", "g", "t", perm=[0, 2, 1, 3, 4]),
    node("Concat", "d0_ minus d2_ d3_", "whole", axis=0),
    node("Reshape", "t whole", "c"),
]
SAME_PADDING = [
    *axis(2),
    node("Cast", "d2", "f", to=1),
    node("Div", "f two", "halves"),
    node("Ceil", "halves", "up"),
    node("Cast", "up", "outputs", to=7),
    node("Sub", "outputs i1", "steps"),
    node("Mul", "steps i2", "begin"),
    node("Add", "begin i3", "end"),
    node("Sub", "end d2", "missing"),
    node("Max", "missing i0", "total"),
    node("Div", "total i2", "before"),
    node("Sub", "total before", "after"),
    *as_list("before", "after"),
    node("ConstantOfShape", "a2", "none", value=tensor("", np.array([0]))),
    node("Concat", "none before_ before_ none after_ after_", "pads", axis=0),
    node("Pad", "x pads", "c"),
]
UPSAMPLED = [
    node("Shape", "x", "s"),
    node("Slice", "s a2 a4 a0", "size"),
    node("Mul", "size a2", "larger"),
    node("Slice", "s a0 a2 a0", "front"),
    node("Concat", "front larger", "sizes", axis=0),
    helper.make_node("Resize", ["x", "", "", "sizes"], ["c"], mode="nearest"),
]
FLOORED = [
    *axis(2),
    node("Cast", "d2", "f", to=1),
    node("Mul", "f scale", "scaled"),
    node("Floor", "scaled", "whole"),
    node("Cast", "whole", "size", to=7),
    *as_list("size"),
    node("Shape", "x", "s"),
    node("Slice", "s a0 a2 a0", "front"),
    node("Concat", "front size_ size_", "sizes", axis=0),
    helper.make_node("Resize", ["x", "", "", "sizes"], ["c"], mode="nearest"),
]


@pytest.mark.parametrize(
    ("nodes", "size"),
    [(SHUFFLE, (8, 10)), (SAME_PADDING, (9, 11)), (UPSAMPLED, (16, 20)), (FLOORED, (12, 12))],
    ids=["channel shuffle", "same padding", "upsampling", "resize to a rounded size"],
)
@pytest.mark.parametrize("images", ["N", 2])
def test_a_convolution_of_a_size_that_the_graph_computes_is_a_layer(
    nodes: list[onnx.NodeProto], size: tuple[int, int], images: Any, tmp_path: Path
) -> None:
    arrays = NUMBERS | {"w": KERNEL, "minus": np.array([-1]), "two": np.float32(2), "scale": np.float32(1.57)}
    proto = model([*nodes, conv(inputs=("c", "w"))], constants(**arrays), inputs=[info("x", [images, *INPUT[1:]])])
    layer = layer_of(tmp_path, proto)
    assert layer.spec.input_shape == (3, *size)
    proto.graph.output[0].name = layer.output
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    x = values(2, 3, 8, 10)
    [c] = computed(shown, "c", x)
    assert c.shape[2:] == size
    del proto.graph.node[:-1]
    del proto.graph.input[:]
    proto.graph.input.append(info("c", ["N", 3, *size]))
    assert_layer_computes_its_output(layer, proto, c=c)


def computed(proto: onnx.ModelProto, name: str, x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    from tests.unit.onnx_models import tensors_of

    return list(tensors_of(proto, [name], x=x))


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [info(f"{name}_out", None)])


def test_of_an_if_whose_condition_follows_from_the_sizes_one_branch_counts(tmp_path: Path) -> None:
    cropped = branch("cropped", node("Slice", "x a0 a4 a2", "cropped_out"))
    whole = branch("whole", node("Identity", "x", "whole_out"))
    choice = helper.make_node("If", ["square"], ["c"], then_branch=whole, else_branch=cropped)
    nodes = [*axis(2), *axis(3), node("Equal", "d2 d3", "square"), choice, conv(inputs=("c", "w"))]
    proto = model(nodes, constants(**NUMBERS, w=KERNEL), inputs=[info("x", ["N", 3, 8, 10])])
    assert layer_of(tmp_path, proto).spec.input_shape == (3, 4, 10)


def test_a_size_that_depends_on_the_number_of_images_is_not_known(tmp_path: Path) -> None:
    nodes = [*axis(0), *as_list("d0"), node("Concat", "a1 a3 d0_ a4", "s", axis=0), node("Expand", "one s", "c")]
    proto = model(
        [conv("good", output="z"), *nodes, conv("odd", ("c", "w"))],
        constants(**NUMBERS, w=KERNEL, one=1.0),
        inputs=[info("x", ["N", 3, 8, 8])],
    )
    [skipped] = read_checkpoint(save(tmp_path, proto)).skipped
    assert skipped.reason.endswith("give them with --input-shape x:1,3,8,8")


NOT_FROM_SIZES = [
    node("NonZero", "x", "n"),
    node("Shape", "n", "s"),
    node("Gather", "s a1", "d"),
    node("Concat", "a1 a3 d a4", "t", axis=0),
    node("Expand", "one t", "c"),
]


def test_an_empty_part_of_a_shape_is_followed(tmp_path: Path) -> None:
    """PyTorch's flatten of the first axes, as a voice detector has it before its convolutions."""
    nodes = [
        node("Shape", "x", "known"),
        node("Cast", "known", "float", to=1),
        node("Ceil", "float", "up"),
        node("Cast", "up", "computed", to=7),
        node("Reshape", "x computed", "t"),
        node("Shape", "t", "s"),
        node("Slice", "s a0 a0 a0", "front"),
        node("Slice", "s a2 a4 a0", "back"),
        node("Concat", "front minus back", "sizes", axis=0),
        node("Reshape", "t sizes", "c"),
        node("Conv", "c v", "d", "first", pads=[1, 1]),
        node("Conv", "d v", "y", "second", pads=[1, 1]),
    ]
    numbers = constants(**NUMBERS, minus=np.array([-1]), v=values(3, 3, 3))
    checkpoint = read_checkpoint(save(tmp_path, model(nodes, numbers, inputs=[info("x", [1, 1, 3, 10])])))
    assert [layer.spec.input_shape for layer in checkpoint.layers] == [(3, 1, 10)] * 2


@pytest.mark.parametrize("size", [["N", 3, 8, 8], ["N", 3, "h", "w"]])
def test_an_option_that_would_not_help_is_not_named(size: list[Any], tmp_path: Path) -> None:
    proto = model(
        [conv("good", ("z", "w"), "u"), *NOT_FROM_SIZES, conv("odd", ("c", "w"))],
        constants(**NUMBERS, w=KERNEL, one=1.0),
        inputs=[info("x", size), info("z", ["N", 3, 8, 8])],
    )
    [skipped] = read_checkpoint(save(tmp_path, proto)).skipped
    assert "do not follow from the model's inputs" in skipped.reason
    assert "--input-shape" not in skipped.reason


def test_of_several_inputs_only_the_one_that_decides_the_size_is_named(tmp_path: Path) -> None:
    nodes = [conv("good", ("z", "w"), "u"), node("Relu", "x", "c"), conv("odd", ("c", "w"))]
    inputs = [info("z", ["N", 3, 8, 8]), info("mask", ["N", "length"]), info("x", ["N", 3, "h", "w"])]
    [skipped] = read_checkpoint(save(tmp_path, model(nodes, constants(w=KERNEL), inputs=inputs))).skipped
    assert skipped.reason.endswith("give them with --input-shape x:N,3,SIZE,SIZE")


def test_the_option_that_is_named_helps(tmp_path: Path) -> None:
    proto = model(
        [*UPSAMPLED, conv(inputs=("c", "w"))], constants(**NUMBERS, w=KERNEL), inputs=[info("x", ["N", 3, "h", "w"])]
    )
    [layer] = read_checkpoint(save(tmp_path, proto), {"x": (1, 3, 8, 10)}).layers
    assert layer.spec.input_shape == (3, 16, 20)
