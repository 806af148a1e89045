"""ONNX reader: small files cannot demand much memory, and long chains of nodes take linear time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from codegen.errors import CheckpointError
from codegen.frontend.onnx.fuse import fusion
from codegen.frontend.onnx.graph import constants as limits
from codegen.frontend.onnx.graph import evaluation, whole_graph
from codegen.frontend.onnx.graph.nodes import Node, unique_names
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.toolchain.tools import ToolLimits
from tests.unit.onnx_models import (
    branched_network,
    constants,
    conv,
    info,
    layer_of,
    model,
    node,
    save,
    squeeze_and_excitation,
    tensor,
    values,
)

KERNEL = values(4, 3, 3, 3)


def sparse_weights(name: str, *shape: int) -> onnx.SparseTensorProto:
    """A sparse tensor of this shape with one value."""
    return helper.make_sparse_tensor(tensor(name, values(1)), tensor("", np.array([0])), shape)


LIMIT = "the constants of the model take more than 0.5 MB in memory, far more than its files; "


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the memory limit to a thousandth, so that tests are fast."""
    monkeypatch.setattr(limits, "LEAST_BYTES_ALLOWED", limits.LEAST_BYTES_ALLOWED >> 10)
    monkeypatch.setattr(limits, "BYTES_ALLOWED_PER_BYTE", 0)


@pytest.mark.usefixtures("small_limit")
def test_sparse_constants_above_the_memory_limit_are_skipped(tmp_path: Path) -> None:
    number = 24
    sparse = [sparse_weights(f"w{i}", 2**10, 3, 2, 4) for i in range(number)]  # 96 KB each
    convs = [conv(f"c{i}", ("x", f"w{i}"), f"y{i}") for i in range(number)]
    checkpoint = read_checkpoint(save(tmp_path, model(convs, output="y0", sparse_initializer=sparse)))
    assert len(checkpoint.layers) == 5
    assert {skipped.reason for skipped in checkpoint.skipped} == {LIMIT + "store them as dense initializers"}


@pytest.mark.usefixtures("small_limit")
def test_computed_constants_above_the_memory_limit_are_skipped(tmp_path: Path) -> None:
    shape = constants(s=np.array([2**10, 3, 2, 8]))
    fills = [node("ConstantOfShape", "s", f"w{i}", value=tensor("", np.float32([i + 1]))) for i in range(3)]
    proto = model([*fills, node("Concat", "w0 w1 w2", "v", axis=0), conv(inputs=("x", "v"))], shape)
    with pytest.raises(CheckpointError, match=LIMIT):
        read_checkpoint(save(tmp_path, proto))


def test_weights_that_many_layers_share_are_read_for_each_of_them(tmp_path: Path) -> None:
    nodes = [conv(f"c{i}", (f"t{i}", "w"), f"t{i + 1}", pads=[1, 1, 1, 1]) for i in range(300)]
    proto = model(nodes, constants(w=values(3, 3, 3, 3)), inputs=[info("t0", ["N", 3, 8, 8])], output="t300")
    assert len(read_checkpoint(save(tmp_path, proto)).layers) == 300


def test_a_constant_that_many_need_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    outputs = evaluation.Evaluator.outputs

    def counted(self: evaluation.Evaluator, node: onnx.NodeProto, arrays: Any) -> Any:
        computed.append(node.output[0])
        return outputs(self, node, arrays)

    monkeypatch.setattr(evaluation.Evaluator, "outputs", counted)
    chain = [node("Neg", f"w{i}", f"w{i + 1}") for i in range(100)]
    convs = [conv(f"c{i}", ("x", f"w{i}"), f"y{i}") for i in range(100, 0, -1)]
    checkpoint = read_checkpoint(save(tmp_path, model([*chain, *convs], constants(w0=KERNEL), output="y1")))
    assert len(checkpoint.layers) == 100
    assert sorted(computed) == sorted(f"w{i}" for i in range(1, 101))


def test_a_long_chain_of_constants_is_computed(tmp_path: Path) -> None:
    chain = [node("Neg", f"w{i}", f"w{i + 1}") for i in range(3001)]
    layer = layer_of(tmp_path, model([*chain, conv(inputs=("x", "w3001"))], constants(w0=KERNEL)))
    np.testing.assert_array_equal(layer.weights.kernel, -KERNEL)


def test_the_weights_are_computed_once_however_many_nodes_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    folded = fusion.folded

    def counted(kernel: np.ndarray, *others: Any) -> Any:
        sizes.append(kernel.size)
        return folded(kernel, *others)

    monkeypatch.setattr(fusion, "folded", counted)
    chain = [node("Mul", f"t{i} k", f"t{i + 1}") for i in range(500)]
    layer = layer_of(tmp_path, model([conv(output="t0"), *chain], constants(w=KERNEL, k=-1.0), output="t500"))
    np.testing.assert_array_equal(layer.weights.kernel, KERNEL)
    assert len(layer.folded) == 500
    assert sum(size == KERNEL.size for size in sizes) == 1


def test_names_of_many_nodes_with_one_output_are_found_in_one_pass() -> None:
    nodes = [Node("Conv", "", "", (), ("y",)) for _ in range(50_000)]
    names = unique_names(nodes)
    assert (names[0], names[1], names[-1]) == ("y", "y_2", "y_50000")


def chained(*operators: str, count: int, first: str) -> list[onnx.NodeProto]:
    """A chain of these operators, repeated; @ among a node's inputs is the output of the node before it."""
    nodes, before = [], first
    for i in range(count):
        for operator in operators:
            name, *inputs = operator.replace("@", before).split()
            before = f"{name}{i}"
            nodes.append(node(name, " ".join(inputs), before, **({"axis": 0} if name == "Concat" else {})))
    return nodes


GROWING = {
    "added dimensions": chained("Unsqueeze @ many", count=300, first="x"),
    "doubled dimensions": chained("Concat @ @", "ConstantOfShape @", "Shape @", count=30, first="four"),
    "doubled numbers": [node("Shape", "x", "s"), *chained("Concat @ @", count=60, first="s")],
    "doubled constants": chained("Concat @ @", count=60, first="four"),
    "one node of many outputs": [node("Split", "x", "z", axis=1, num_outputs=2**31 - 1)],
}
SIZES = constants(many=np.arange(1000), four=np.ones(4, np.int64), w=KERNEL)


@pytest.mark.parametrize("nodes", GROWING.values(), ids=GROWING.keys())
def test_shapes_that_grow_without_end_are_refused(
    nodes: list[onnx.NodeProto], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_graph, "LIMITS", ToolLimits(seconds=20, memory_bytes=2**28))
    with pytest.raises(CheckpointError, match=r"its shapes take more than 20 s or 0\.25 GB to infer"):
        read_checkpoint(save(tmp_path, model([*nodes, conv()], SIZES, opset=18)))


def test_an_inference_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_graph, "LIMITS", ToolLimits(seconds=0.01))
    with pytest.raises(CheckpointError, match=r"its shapes take more than 0\.01 s"):
        read_checkpoint(save(tmp_path, model([node("Shape", "x", "s"), conv()], SIZES)))


ONE = tensor("", np.array([1]))
DIMENSIONS = {
    "an input": ([], [info("x", ["N", 3, 8, 8]), info("long", [1] * 33)]),
    "a constant": ([node("Constant", "", "long", value=tensor("", np.ones([1] * 33, np.float32)))], None),
    "an enlarged tensor": ([node("ConstantOfShape", "many", "long")], None),
    "a tensor with a dimension for each image": (
        [
            *[node("Shape", "x", "s"), node("Gather", "s i0", "n"), node("ConstantOfShape", "n", "ones", value=ONE)],
            node("ConstantOfShape", "ones", "long"),
        ],
        None,
    ),
}


@pytest.mark.parametrize(("nodes", "inputs"), DIMENSIONS.values(), ids=DIMENSIONS.keys())
def test_a_tensor_of_too_many_dimensions_is_refused(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto] | None, tmp_path: Path
) -> None:
    sizes = [*SIZES, tensor("i0", np.array([0]))]
    with pytest.raises(CheckpointError, match=r"has \d+ dimensions, not 32 or fewer"):
        read_checkpoint(save(tmp_path, model([*nodes, conv()], sizes, inputs=inputs)))


def test_a_split_into_more_parts_than_it_has_outputs_has_no_shape(tmp_path: Path) -> None:
    split = node("Split", "x", "z", axis=0, num_outputs=2**31 - 1)  # its size is known for a number of images only
    assert layer_of(tmp_path, model([split, conv()], SIZES, opset=18)).name == "conv"


def test_a_convolutional_network_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_graph, "run_tool", None)
    assert read_checkpoint(branched_network(tmp_path)).layers
    flat = [conv(), node("Reshape", "y flat", "z"), node("MatMul", "z fc", "out")]
    sizes = constants(w=KERNEL, flat=np.array([-1, 144]), fc=values(144, 5))
    assert len(read_checkpoint(save(tmp_path, model(flat, sizes, output="out"))).layers) == 2


@pytest.mark.parametrize("network", [branched_network, squeeze_and_excitation])
def test_a_process_of_its_own_infers_the_same_shapes(
    network: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx.load(network(tmp_path))
    here = whole_graph.inferred_graph(proto)
    monkeypatch.setattr(whole_graph, "MOST_PLAIN_NODES", 0)
    assert whole_graph.inferred_graph(proto) == here
