"""Numbers that follow from shapes are constants before the network runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from codegen.frontend.onnx.graph.shape_propagation import shape_of
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.layer_spec import Clip
from tests.unit.onnx_models import conv, info, model, node, save, tensor, tensors_of, values

AXES = [tensor("one", np.array([1])), tensor("two", np.array(2)), tensor("zero", np.array(0))]


def grid(folder: Path, batch: str | int = "N") -> Path:
    """Adds the number of each row to a convolution's output, as detectors compute the centres of their cells."""
    nodes = [
        conv(output="c"),
        node("Relu", "c", "r"),
        node("Shape", "c", "shape"),
        node("Gather", "shape two", "height"),
        node("Range", "zero height step", "range"),
        node("Cast", "range", "rows", to=onnx.TensorProto.FLOAT),
        node("Unsqueeze", "rows one", "column"),
        node("Add", "r column", "y"),
    ]
    tensors = [tensor("w", values(4, 3, 3, 3)), tensor("step", np.array(1)), *AXES]
    return save(folder, model(nodes, tensors, inputs=[info("x", (batch, 3, 8, 8))]))


def rest_of(checkpoint: Checkpoint) -> onnx.GraphProto:
    assert checkpoint.residual_graph is not None
    return onnx.load_model_from_string(checkpoint.residual_graph.with_layers(checkpoint.layers)).graph


@pytest.mark.parametrize("batch", ["N", 1])
def test_numbers_computed_from_fixed_sizes_are_constants_of_the_rest(batch: str | int, tmp_path: Path) -> None:
    graph = rest_of(read_checkpoint(grid(tmp_path, batch)))
    assert [each.op_type for each in graph.node] == ["Layer", "Add"]


def test_a_rest_with_folded_numbers_computes_what_the_model_does(tmp_path: Path) -> None:
    path = grid(tmp_path)
    checkpoint = read_checkpoint(path)
    assert checkpoint.residual_graph is not None
    rest = onnx.load_model_from_string(checkpoint.residual_graph.with_layers(()))
    x = values(2, 3, 8, 8, seed=1)
    [wanted], [found] = (ReferenceEvaluator(each).run(None, {"x": x}) for each in (onnx.load(path), rest))
    np.testing.assert_array_equal(found, wanted)


def test_an_activation_is_fused_although_the_shape_before_it_is_read(tmp_path: Path) -> None:
    [layer] = read_checkpoint(grid(tmp_path)).layers
    assert layer.spec.epilogue == (Clip(low=0.0),)


def test_numbers_that_count_the_images_are_computed_when_the_network_runs(tmp_path: Path) -> None:
    nodes = [
        conv(output="c"),
        node("Shape", "c", "shape"),
        node("Gather", "shape zero", "images"),
        node("Concat", "images rest", "sizes", axis=0),
        node("Reshape", "c sizes", "y"),
    ]
    tensors = [tensor("w", values(4, 3, 3, 3)), tensor("rest", np.array([-1])), tensor("zero", np.array([0]))]
    path = save(tmp_path, model(nodes, tensors))
    operators = [each.op_type for each in rest_of(read_checkpoint(path)).node]
    assert operators == ["Layer", "Shape", "Gather", "Concat", "Reshape"]


@pytest.mark.parametrize(
    ("operator", "limit"), [("Min", 100), ("Max", 1000), ("Greater", 1), ("Less", 500), ("Equal", 1)]
)
def test_numbers_that_cap_or_compare_the_images_are_computed_when_the_network_runs(
    operator: str, limit: int, tmp_path: Path
) -> None:
    nodes = [
        conv(output="c"),
        node("Shape", "c", "shape"),
        node("Gather", "shape zero", "images"),
        node(operator, "images limit", "number"),
        node("Cast", "number", "term", to=onnx.TensorProto.FLOAT),
        node("Add", "c term", "y"),
    ]
    tensors = [tensor("w", values(4, 3, 3, 3)), tensor("limit", np.array([limit])), tensor("zero", np.array([0]))]
    graph = rest_of(read_checkpoint(save(tmp_path, model(nodes, tensors))))
    assert [each.op_type for each in graph.node] == ["Layer", "Shape", "Gather", operator, "Cast", "Add"]


ENDS = {
    "Min": [node("Min", "images limit", "end")],
    "Max": [node("Max", "images limit", "end")],
    "Clip": [node("Clip", "images one limit", "end")],
    "Where": [node("Less", "images limit", "few"), node("Where", "few images limit", "end")],
    "constant": [node("Identity", "limit", "end")],
}


@pytest.mark.parametrize("limit", [2, 100, 1000])
@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("ending", ENDS.values(), ids=ENDS.keys())
def test_no_size_that_a_number_caps_is_read_as_the_cap(
    ending: list[onnx.NodeProto], axis: int, limit: int, tmp_path: Path
) -> None:
    nodes = [
        *[conv("first", output="c"), node("Shape", "c", "shape"), node("Gather", "shape zero", "images"), *ending],
        *[node("Slice", "c zero end axis", "part"), node("ReduceMean", "part", "mean", axes=[2, 3], keepdims=0)],
        node("MatMul", "mean fc", "y", "last"),
    ]
    numbers = {"zero": [0], "one": 1, "limit": [limit], "axis": [axis]}
    tensors = [tensor(name, np.array(number)) for name, number in numbers.items()]
    proto = model(nodes, [*tensors, tensor("w", values(4, 3, 3, 3)), tensor("fc", values(4, 5))])
    checkpoint = read_checkpoint(save(tmp_path, proto))
    graph = rest_of(checkpoint)
    shapes = {each.name: shape_of(each.type) for each in (*graph.value_info, *graph.output)}
    rows = {layer.input: layer.rows for layer in checkpoint.layers}
    assert {"c", "part", "mean", "y"} <= shapes.keys()
    assert set(rows) == {"x", "mean"}
    for images in (1, 3, 101, 1001):
        for name, array in zip(shapes, tensors_of(proto, list(shapes), x=values(images, 3, 8, 8)), strict=True):
            sizes = shapes[name] or ()
            assert len(sizes) == array.ndim
            assert all(size in (None, own) for size, own in zip(sizes, array.shape, strict=True)), (name, images)
            assert name != "mean" or rows[name] in (None, len(array) / images)


def test_a_known_output_of_the_network_stays_computed(tmp_path: Path) -> None:
    built = model(
        [conv(), node("Shape", "y", "sizes")], [tensor("w", values(4, 3, 3, 3))], inputs=[info("x", (1, 3, 8, 8))]
    )
    built.graph.output.append(info("sizes", (4,), onnx.TensorProto.INT64))
    graph = rest_of(read_checkpoint(save(tmp_path, built)))
    assert [each.op_type for each in graph.node] == ["Layer", "Shape"]
