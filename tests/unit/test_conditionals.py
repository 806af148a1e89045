"""If nodes whose condition is known before the model runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from codegen.errors import CheckpointError
from codegen.frontend.onnx.export.segments import LayerCall, Segment, segmented
from codegen.frontend.onnx.reader import read_checkpoint
from farm.runtime.hybrid import Segments
from tests.unit.onnx_models import info, model, node, save, tensor, values


def branch(name: str, nodes: list[onnx.NodeProto], output: str, **tensors: Any) -> onnx.GraphProto:
    constants = [tensor(each, array) for each, array in tensors.items()]
    return helper.make_graph(nodes, name, [], [info(output, None)], constants)


def conditional(condition: str, output: str, yes: onnx.GraphProto, no: onnx.GraphProto) -> onnx.NodeProto:
    return helper.make_node("If", [condition], [output], f"if_{output}", then_branch=yes, else_branch=no)


def two_rates(folder: Path) -> Path:
    """Another convolution for each rate; within it another If, of the input's width; both use equal inner names."""

    def of_rate(name: str, seed: int) -> onnx.GraphProto:
        wide = branch("wide", [node("Relu", "t", "u")], "u")
        narrow = branch("narrow", [node("Identity", "t", "v")], "v")
        nodes = [
            node("Conv", "x w", "t", name),
            node("Shape", "t", "s", start=3),
            node("Squeeze", "s", "s0"),
            node("Greater", "s0 four", "is_wide"),
            conditional("is_wide", "r", wide, narrow),
        ]
        return branch(name, nodes, "r", w=values(4, 3, 1, 1, seed=seed), four=np.array(4))

    nodes = [
        node("Equal", "rate fast", "is_fast"),
        conditional("is_fast", "a", of_rate("fast", 1), of_rate("slow", 2)),
        node("Neg", "a", "t"),
        node("Add", "t x1", "y"),
    ]
    constants = [tensor("fast", np.array(16000)), tensor("x1", np.float32(1))]
    inputs = [info("x", ("N", 3, 8, 8)), info("rate", (), onnx.TensorProto.INT64)]
    return save(folder, model(nodes, constants, inputs=inputs))


@pytest.mark.parametrize(("rate", "layer"), [(16000, "fast"), (8000, "slow")])
def test_a_branch_that_is_known_is_compiled(rate: int, layer: str, tmp_path: Path) -> None:
    path = two_rates(tmp_path)
    checkpoint = read_checkpoint(path, {"x": (2, 3, 8, 8)}, {"rate": rate})
    assert [each.name for each in checkpoint.layers] == [layer]
    assert not checkpoint.skipped
    assert checkpoint.residual_graph is not None
    network = segmented(checkpoint.residual_graph.with_layers(()))
    assert [each.name for each in network.inputs] == ["x"]
    x = values(2, 3, 8, 8)

    def no_layer(call: LayerCall, arrays: Any) -> Any:
        raise AssertionError(call)

    [made] = Segments(network, {}).run([x], no_layer)
    [expected] = onnxruntime.InferenceSession(str(path)).run(None, {"x": x, "rate": np.array(rate)})
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    [segment] = network.steps
    assert isinstance(segment, Segment)
    assert "If" not in [each.op_type for each in segment.network.graph.node]


def test_a_branch_that_is_not_known_stays(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing to compile"):
        read_checkpoint(two_rates(tmp_path))


def test_a_branch_by_the_number_of_images_stays(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s", end=1),
        node("Squeeze", "s", "s0"),
        node("Equal", "s0 one", "is_one"),
        conditional(
            "is_one", "a", branch("p", [node("Neg", "x", "p1")], "p1"), branch("q", [node("Abs", "x", "q1")], "q1")
        ),
        node("Conv", "a w", "y"),
    ]
    constants = [tensor("one", np.array(1)), tensor("w", values(4, 3, 1, 1))]
    checkpoint = read_checkpoint(save(tmp_path, model(nodes, constants)))
    assert checkpoint.residual_graph is not None
    [segment] = segmented(checkpoint.residual_graph.with_layers(())).steps
    assert isinstance(segment, Segment)
    assert "If" in [each.op_type for each in segment.network.graph.node]


@pytest.mark.parametrize(
    ("given", "why"),
    [({"rates": 1.0}, "no input 'rates' to give the value 1: there are x, rate"), ({"x": 1.0}, "no small tensor")],
)
def test_a_value_for_no_small_input_is_refused(given: dict[str, float], why: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(two_rates(tmp_path), input_values=given)
