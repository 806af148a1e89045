"""The residual graph, run with the compiled layers, computes what the model does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.onnx.export.residual_graph import LAYER_DOMAIN
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.layer_spec import Linear
from codegen.model_zoo import NETWORKS, write_network
from codegen.verification.reference import layer_output
from tests.unit.onnx_models import constants, conv, info, model, node, save, tensor, values

SHAPES = {"lenet5": (1, 28, 28), "alexnet_cifar10": (3, 32, 32), "mlp": (784,)}


def outputs_of(rest: bytes, checkpoint: Checkpoint, x: np.ndarray, **others: np.ndarray) -> np.ndarray:
    """The outputs by onnx's evaluator, with compiled layers by the reference."""
    layers = {layer.name: layer for layer in checkpoint.layers}

    class LayerRun(OpRun):
        op_domain = LAYER_DOMAIN

        def _run(self, x: np.ndarray, residual: np.ndarray | None = None, layer: str = "") -> tuple[np.ndarray]:
            found = layers[layer]
            given = x.reshape(-1, *found.spec.input_shape)
            added = None if residual is None else residual.reshape(-1, *found.spec.output_shape)
            output = layer_output(found.spec, found.weights, given, residual=added).astype(np.float32)
            rows = (
                (*x.shape[:-1], -1)
                if isinstance(found.spec, Linear)
                else (*output.shape[:2], *output.shape[6 - x.ndim :])
            )
            return (output.reshape(rows),)

    LayerRun.__name__ = "Layer"
    [output] = ReferenceEvaluator(onnx.load_model_from_string(rest), new_ops=[LayerRun]).run(
        None, {"input": x, **others}
    )
    return np.asarray(output)


def read(tmp_path: Path, name: str) -> tuple[Path, Checkpoint, Any]:
    path = tmp_path / f"{name}.onnx"
    write_network(path, NETWORKS[name](0.9, 0))
    checkpoint = read_checkpoint(path)
    assert checkpoint.residual_graph is not None
    return path, checkpoint, checkpoint.residual_graph


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("compiled", [slice(None), slice(0, 0), slice(0, 2)], ids=["all", "none", "two"])
def test_the_rest_with_its_layers_computes_what_the_model_does(tmp_path: Path, name: str, compiled: slice) -> None:
    path, checkpoint, rest = read(tmp_path, name)
    x = np.random.default_rng(0).standard_normal((2, *SHAPES[name]), np.float32)
    [expected] = ReferenceEvaluator(onnx.load(path)).run(None, {"input": x})
    found = outputs_of(rest.with_layers(checkpoint.layers[compiled]), checkpoint, x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_only_what_the_rest_needs_is_in_it(tmp_path: Path) -> None:
    _, checkpoint, rest = read(tmp_path, "resnet18")
    graph = onnx.load_model_from_string(rest.with_layers(checkpoint.layers)).graph
    assert not graph.initializer
    assert {node.op_type for node in graph.node} == {"Layer", "MaxPool", "GlobalAveragePool", "Flatten"}
    added = [node for node in graph.node if len(node.input) == 2]
    assert len(added) == 8  # the residual blocks


def test_outputs_have_the_shapes_that_follow_from_given_input_shapes(tmp_path: Path) -> None:
    path = save(tmp_path, model([conv()], [tensor("w", values(4, 3, 3, 3))], inputs=[info("x", ("N", 3, "H", "W"))]))
    checkpoint = read_checkpoint(path, {"x": (2, 3, 8, 9)})
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    assert [each.shape for each in network.outputs] == [(2, 4, 6, 7)]


def test_layers_that_are_not_compiled_stay_with_their_weights(tmp_path: Path) -> None:
    _, checkpoint, rest = read(tmp_path, "lenet5")
    [_, *compiled] = checkpoint.layers
    graph = onnx.load_model_from_string(rest.with_layers(compiled)).graph
    assert [node.op_type for node in graph.node if node.name == "conv1"] == ["Conv"]
    assert {tensor.name for tensor in graph.initializer} == {"conv1.weight", "conv1.bias"}


def test_equal_models_leave_equal_bytes(tmp_path: Path) -> None:
    first, second = (read(tmp_path / each, "lenet5") for each in ("a", "b") if not (tmp_path / each).mkdir())
    assert first[2].with_layers(first[1].layers) == second[2].with_layers(second[1].layers)


def test_constants_that_the_model_computes_are_stored(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    half = numpy_helper.from_array(np.array([3.0], np.float32), "three")
    nodes = [
        helper.make_node("Gemm", ["input", "w"], ["y"], "fc", transB=1),
        helper.make_node("Neg", ["three"], ["minus"]),
        helper.make_node("Softmax", ["y"], ["s"]),
        helper.make_node("Pow", ["s", "minus"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 4])],
        [weights, half],
    )
    path = save(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    checkpoint = read_checkpoint(path)
    assert checkpoint.residual_graph is not None
    left = onnx.load_model_from_string(checkpoint.residual_graph.with_layers(checkpoint.layers)).graph
    assert [node.op_type for node in left.node] == ["Layer", "Softmax", "Pow"]
    assert [(each.name, float(numpy_helper.to_array(each)[0])) for each in left.initializer] == [("minus", -3.0)]


RESHAPED: dict[str, list[onnx.NodeProto]] = {
    "of flat maps": [
        node("Conv", "input w", "c", "conv"),
        node("Reshape", "c flat", "d"),
        node("Add", "d r", "e"),
        node("Softmax", "e", "output", axis=1),
    ],
    "of flat maps, twice": [
        node("Conv", "input w", "c", "conv"),
        node("Flatten", "c", "d"),
        node("Relu", "d", "e"),
        node("Identity", "e", "f"),
        node("Reshape", "f flat", "g"),
        node("Add", "g r", "h"),
        node("Transpose", "h", "output", perm=[0, 2, 1]),
    ],
    "to a shape that is computed": [
        node("Conv", "input w", "c", "conv"),
        node("Shape", "r", "s"),
        node("Reshape", "c s", "d"),
        node("Relu", "d", "e"),
        node("Softmax", "e", "output", axis=1),
    ],
}


@pytest.mark.parametrize("name", RESHAPED)
def test_a_layer_behind_which_the_model_reshapes_is_reshaped_in_the_rest(tmp_path: Path, name: str) -> None:
    tensors = constants(w=values(4, 3, 3, 3), flat=np.array([-1, 4, 9]), r=values(2, 4, 9))
    proto = model(RESHAPED[name], tensors, inputs=[info("input", (2, 3, 5, 5)), info("q", (2, 4, 9))], output="output")
    proto.graph.node.insert(0, node("Relu", "q", "r"))  # a residual that is computed
    del proto.graph.initializer[-1]
    path = save(tmp_path, proto)
    checkpoint = read_checkpoint(path)
    [layer] = checkpoint.layers
    assert layer.reshaped
    assert checkpoint.residual_graph is not None
    x, q = values(2, 3, 5, 5), values(2, 4, 9, seed=1)
    [expected] = ReferenceEvaluator(proto).run(None, {"input": x, "q": q})
    rest = checkpoint.residual_graph.with_layers(checkpoint.layers)
    np.testing.assert_allclose(outputs_of(rest, checkpoint, x, q=q), expected, rtol=1e-4, atol=1e-5)
    before = {each.input[0] for each in proto.graph.node if each.output[0] in layer.reshaped}
    assert before.isdisjoint(name for each in read_network(rest).nodes for name in each.outputs), "other values"


def test_known_shapes_of_intermediate_tensors_are_exported(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c"), node("MaxPool", "c", "p", kernel_shape=[2, 2]), node("Exp", "p", "y")]
    proto = model(nodes, constants(w=values(4, 3, 3, 3)), inputs=[info("x", ("N", 3, 10, 10))])
    checkpoint = read_checkpoint(save(tmp_path, proto))
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    assert network.shapes["x"] == ("N", 3, 10, 10)
    assert network.shapes["c"] == (None, 4, 8, 8)
    assert network.shapes["p"] == (None, 4, 7, 7)


TO_LAST = node("Transpose", "c", "d", perm=[0, 2, 3, 1])
TRANSPOSED = {
    "a scale and an activation": ([TO_LAST, node("Mul", "k d", "e"), node("Relu", "e", "y")], {"Layer", "Transpose"}),
    "the reverse of all axes": ([node("Transpose", "c", "d"), node("Sigmoid", "d", "y")], {"Layer", "Transpose"}),
    "there and back": (
        [TO_LAST, node("Mul", "d k", "e"), node("Transpose", "e", "f", perm=[0, 3, 1, 2]), node("Relu", "f", "y")],
        {"Layer", "Transpose"},
    ),
    "a scale, then what is added": (
        [TO_LAST, node("Mul", "d k", "e"), node("Add", "e r", "y")],
        {"Layer", "Transpose", "Add"},
    ),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_what_maps_elements_behind_a_transpose_is_in_the_layer_before_it(tmp_path: Path, name: str) -> None:
    nodes, beside = TRANSPOSED[name]
    tensors = constants(w=values(4, 3, 3, 3), k=values(4))
    inputs = [info("input", ("N", 3, 5, 5)), info("r", ("N", 3, 3, 4))]
    proto = model([node("Conv", "input w", "c", "conv"), *nodes], tensors, inputs=inputs)
    checkpoint = read_checkpoint(save(tmp_path, proto))
    assert checkpoint.residual_graph is not None
    rest = checkpoint.residual_graph.with_layers(checkpoint.layers)
    assert {each.op_type for each in onnx.load_model_from_string(rest).graph.node} == beside
    x, r = values(2, 3, 5, 5, seed=2), values(2, 3, 3, 4, seed=3)
    [expected] = ReferenceEvaluator(proto).run(None, {"input": x, "r": r})
    np.testing.assert_allclose(outputs_of(rest, checkpoint, x, r=r), expected, rtol=1e-4, atol=1e-5)
