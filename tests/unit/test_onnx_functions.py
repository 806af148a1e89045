"""ONNX reader: a model's local functions are inlined, within limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph import functions
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
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def function(name: str, nodes: Sequence[onnx.NodeProto], inputs: str = "a", output: str = "b") -> onnx.FunctionProto:
    return helper.make_function("local", name, inputs.split(), [output], list(nodes), OPSETS)


def call(name: str, inputs: str = "a", output: str = "b") -> onnx.NodeProto:
    return node(name, inputs, output, domain="local")


def with_functions(
    own: Sequence[onnx.FunctionProto], nodes: Sequence[onnx.NodeProto], **arrays: np.ndarray
) -> onnx.ModelProto:
    proto = model(nodes, constants(**arrays))
    proto.functions.extend(own)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    return proto


def test_a_convolution_in_a_function_fuses_with_nodes_after_the_call(tmp_path: Path) -> None:
    bias = helper.make_node("Constant", [], ["k"], value=tensor("", values(4)))
    block = function("Block", [bias, node("Conv", "a w k", "t", "inner"), call("Act", "t")], "a w")
    act = function("Act", [node("Relu", "a", "b")])
    proto = with_functions([block, act], [call("Block", "x w", "y")], w=KERNEL)
    layer = layer_of(tmp_path, proto)
    assert (layer.name, layer.output) == ("inner__1", "y")
    assert_layer_computes_its_output(layer, proto, x=values(2, 3, 8, 8))


def test_each_call_of_a_function_is_a_layer_with_its_own_weights(tmp_path: Path) -> None:
    block = function("Block", [node("Conv", "a w", "b", "inner", pads=[1, 1, 1, 1])], "a w")
    first, second = values(3, 3, 3, 3), values(3, 3, 3, 3, seed=1)
    proto = with_functions([block], [call("Block", "x w", "z"), call("Block", "z v", "y")], w=first, v=second)
    layers = read_checkpoint(save(tmp_path, proto)).layers
    assert [layer.name for layer in layers] == ["inner__1", "inner__2"]
    for layer, kernel in zip(layers, (first, second), strict=True):
        np.testing.assert_array_equal(layer.weights.kernel, kernel)


def test_a_constant_is_not_confused_with_a_tensor_of_a_function(tmp_path: Path) -> None:
    block = function("Block", [node("Neg", "a", "t"), node("Relu", "t", "b")])
    proto = with_functions([block], [call("Block", "x", "u"), conv(inputs=("u", "t__1"))], t__1=KERNEL)
    np.testing.assert_array_equal(layer_of(tmp_path, proto).weights.kernel, KERNEL)


def test_a_name_that_is_not_text_beside_a_function_is_an_error(tmp_path: Path) -> None:
    act = function("Act", [node("Relu", "a", "b")])
    proto = with_functions([act], [node("Conv", "x wxyz", "t"), call("Act", "t", "y")], wxyz=KERNEL)
    path = tmp_path / "damaged.onnx"
    path.write_bytes(proto.SerializeToString().replace(b"wxyz", b"wx\xffz"))
    with pytest.raises(CheckpointError, match="not text"):
        read_checkpoint(path)


def test_a_function_inside_a_branch_is_put_in_its_place_too(tmp_path: Path) -> None:
    block = function("Block", [node("Conv", "a w", "b", "inner")], "a w")
    branch = helper.make_graph([call("Block", "x w", "t")], "branch", [], [info("t", None)])
    other = helper.make_graph([node("Identity", "x", "e")], "other", [], [info("e", None)])
    choose = helper.make_node("If", ["flag"], ["z"], "choose", then_branch=branch, else_branch=other)
    proto = with_functions([block], [conv("good"), choose], w=KERNEL)
    proto.graph.input.append(info("flag", [], onnx.TensorProto.BOOL))
    (skipped,) = read_checkpoint(save(tmp_path, proto)).skipped
    assert (skipped.name, skipped.operator) == ("inner__1", "Conv")


@pytest.mark.parametrize(
    "ring",
    [
        [function("f", [call("f")])],
        [function("f", [call("g")]), function("g", [call("h")]), function("h", [call("f")])],
    ],
)
def test_functions_that_call_themselves_are_an_error(ring: list[onnx.FunctionProto], tmp_path: Path) -> None:
    proto = with_functions(ring, [conv(output="z"), call("f", "z", "y")], w=KERNEL)
    with pytest.raises(CheckpointError, match="its function 'f' calls itself"):
        read_checkpoint(save(tmp_path, proto))


def test_functions_nested_too_deep_are_an_error(tmp_path: Path) -> None:
    chain = [function(f"f{i}", [call(f"f{i + 1}")]) for i in range(3000)]
    chain.append(function("f3000", [node("Relu", "a", "b")]))
    proto = with_functions(chain, [conv(output="z"), call("f0", "z", "y")], w=KERNEL)
    with pytest.raises(CheckpointError, match="more than 50 deep"):
        read_checkpoint(save(tmp_path, proto))


def test_functions_that_grow_without_measure_are_an_error_before_they_do(tmp_path: Path) -> None:
    chain = [function(f"f{i}", [call(f"f{i + 1}", "a", "t"), call(f"f{i + 1}", "t", "b")]) for i in range(40)]
    chain.append(function("f40", [node("Relu", "a", "b")]))
    proto = with_functions(chain, [conv(output="z"), call("f0", "z", "y")], w=KERNEL)
    with pytest.raises(CheckpointError, match=r"1,099,511,627,777 nodes .* once its functions are in place"):
        read_checkpoint(save(tmp_path, proto))


def test_too_many_calls_of_a_function_fail_before_its_constants_are_copied(tmp_path: Path) -> None:
    large = helper.make_node("Constant", [], ["k"], value=tensor("", values(2**18)))
    block = function("Block", [large, node("Relu", "a", "b")])
    calls = [call("Block", f"t{i}", f"t{i + 1}") for i in range(1000)]
    proto = with_functions([block], [conv(output="t0"), *calls, node("Relu", "t1000", "y")], w=KERNEL)
    with pytest.raises(CheckpointError, match="bytes once its functions are in place"):
        read_checkpoint(save(tmp_path, proto))


def test_more_nodes_than_are_read_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "LARGEST_NODES", 100)
    nodes = [conv(output="t0"), *(node("Relu", f"t{i}", f"t{i + 1}") for i in range(100))]
    with pytest.raises(CheckpointError, match="it has 101 nodes"):
        read_checkpoint(save(tmp_path, model(nodes, constants(w=KERNEL), output="t100")))
