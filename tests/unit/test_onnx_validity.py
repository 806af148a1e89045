"""Models that cannot be used once compiled are refused when they are read, in one line."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from codegen.errors import CheckpointError
from codegen.frontend.onnx.reader import read_checkpoint
from tests.unit.onnx_models import constants, conv, conv_model, info, model, node, save, tensor, values

HUGE = 2**62
ONE_BY_ONE = tensor("w", values(3, 3, 1, 1))


def refusal(folder: Path, proto: onnx.ModelProto) -> str:
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(save(folder, proto))
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("character", ["\0", "\n", "\x1b", "\x85", "\x9b"])
@pytest.mark.parametrize("place", ["node", "input", "output", "weights"])
def test_a_name_with_a_control_character_is_refused(character: str, place: str, tmp_path: Path) -> None:
    names = {"node": "n", "input": "x", "output": "y", "weights": "w"}
    names[place] = f"a{character}run 0"
    proto = model(
        [conv(names["node"], (names["input"], names["weights"]), names["output"])],
        [tensor(names["weights"], values(4, 3, 3, 3))],
        inputs=[info(names["input"], ["N", 3, 8, 8])],
        output=names["output"],
    )
    assert "has a control character: rename" in refusal(tmp_path, proto)


@pytest.mark.parametrize(
    ("nodes", "output"),
    [
        ([conv("a", ("y", "w"), "y")], "y"),
        ([conv("a", ("s", "w"), "p"), node("Add", "p x", "s", "add")], "s"),
        ([conv("a", ("x", "w"), "y"), node("Relu", "q", "p", "one"), node("Relu", "p", "q", "two")], "y"),
    ],
)
def test_nodes_in_a_cycle_are_refused(nodes: list[onnx.NodeProto], output: str, tmp_path: Path) -> None:
    shapes = [info(name, ["N", 3, 8, 8]) for name in ("p", "q", "s")]
    assert "reads its own output in a cycle" in refusal(
        tmp_path, model(nodes, [ONE_BY_ONE], output=output, value_info=shapes)
    )


def test_a_tensor_of_two_nodes_is_refused(tmp_path: Path) -> None:
    proto = model([conv("a", ("x", "w"), "y"), conv("b", ("x", "w"), "y")], [ONE_BY_ONE])
    assert "two nodes write the tensor 'y'" in refusal(tmp_path, proto)


def test_a_node_without_output_is_refused(tmp_path: Path) -> None:
    proto = model([conv("a", ("x", "w"), "y"), helper.make_node("Relu", ["y"], [], "r")], [ONE_BY_ONE])
    assert "the Relu 'r' has no output" in refusal(tmp_path, proto)


@pytest.mark.parametrize("perm", [[0, HUGE, 2, 3], [0, 2, 3], [0, 1, 2, -1]])
def test_a_transpose_of_other_axes_is_refused(perm: list[int], tmp_path: Path) -> None:
    proto = model([conv("a", ("x", "w"), "p"), node("Transpose", "p", "y", "t", perm=perm)], [ONE_BY_ONE])
    assert "Transpose t has the perm" in refusal(tmp_path, proto)


@pytest.mark.parametrize(
    "proto",
    [
        conv_model(pads=[HUGE, HUGE, 0, 0]),
        conv_model(pads=[2**31, 0, 0, 0], strides=[2**31, 1]),
        conv_model(strides=[HUGE, HUGE]),
        conv_model(values(4, 3, 1, 1), dilations=[HUGE, HUGE]),
        conv_model(input_shape=("N", 3, 2**40, 2**40)),
        conv_model(values(2**11, 3, 1, 1), input_shape=("N", 3, 2**10, 2**10)),
        model(
            [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[HUGE, 1])], constants(w=values(3, 4, 3, 3))
        ),
        model([node("MatMul", "x w", "y")], constants(w=values(8, 4)), inputs=[info("x", ["N", HUGE, HUGE, 8])]),
    ],
    ids=["pads", "pads and strides", "strides", "dilations", "inputs", "outputs", "transposed", "rows"],
)
def test_a_size_that_int32_does_not_hold_is_refused(proto: onnx.ModelProto, tmp_path: Path) -> None:
    assert "more than int32 holds" in refusal(tmp_path, proto)
