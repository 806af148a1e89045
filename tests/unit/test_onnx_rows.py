"""ONNX reader: rows per image of fully connected layers, for any order of axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import LIKELY_ROWS
from tests.unit.onnx_models import Shape, constants, info, layer_of, model, node, save, tensors_of, values

W = values(6, 4)
ARRAYS: dict[str, Any] = {
    "w": W,
    "i0": np.array(0),
    "i1": np.array(1),
    "a0": np.array([0]),
    "six": np.array([6]),
    "minus": np.array([-1]),
    "flat": np.array([-1, 6]),
    "windows": np.array([-1, 2, 4, 2, 4, 6]),
    "of_window": np.array([-1, 16, 6]),
}
DIMENSIONS = [
    node("Shape", "x", "s"),
    node("Gather", "s i0", "d0"),
    node("Gather", "s i1", "d1"),
    node("Unsqueeze", "d0 a0", "n"),
    node("Unsqueeze", "d1 a0", "l"),
]

LAYOUTS: dict[str, tuple[Shape, list[onnx.NodeProto]]] = {
    "as they come": (["N", 7, 6], [node("Identity", "x", "r")]),
    "flattened": (["N", 7, 6], [node("Reshape", "x flat", "r")]),
    "flattened by computed sizes": (
        ["N", 7, 6],
        [
            *DIMENSIONS,
            node("Mul", "d0 d1", "all"),
            node("Unsqueeze", "all a0", "m"),
            node("Concat", "m six", "t", axis=0),
            node("Reshape", "x t", "r"),
        ],
    ),
    "flattened to a Gemm's": (["N", 7, 2, 3], [node("Flatten", "x", "r", axis=2)]),
    "sequence first": (["N", 7, 6], [node("Transpose", "x", "r", perm=[1, 0, 2])]),
    "sequence and batch, rebuilt": (
        ["N", 7, 6],
        [*DIMENSIONS, node("Concat", "l n minus", "t", axis=0), node("Reshape", "x t", "r")],
    ),
    "windows": (
        ["N", 8, 8, 6],
        [
            node("Reshape", "x windows", "v"),
            node("Transpose", "v", "u", perm=[0, 1, 3, 2, 4, 5]),
            node("Reshape", "u of_window", "r"),
        ],
    ),
    "sequence first in the model": ([7, "batch", 6], [node("Identity", "x", "r")]),
    "sequence first, unnamed": ([7, None, 6], [node("Identity", "x", "r")]),
    "pooled": (["N", 7, 6], [node("ReduceMean", "x", "r", axes=[1], keepdims=0)]),
    "one position": (["N", 7, 6], [node("Gather", "x i0", "r", axis=1)]),
}


def product(shape: Shape, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    return model([*nodes, node("MatMul", "r w", "y", "fc")], constants(**ARRAYS), inputs=[info("x", shape)])


@pytest.mark.parametrize(("shape", "nodes"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_rows_times_images_are_the_rows_that_a_runtime_has(
    shape: Shape, nodes: list[onnx.NodeProto], tmp_path: Path
) -> None:
    proto = product(shape, nodes)
    rows = layer_of(tmp_path, proto).rows
    assert rows is not None
    for images in (1, 3):
        size = [each if isinstance(each, int) else images for each in shape or ()]
        [y] = tensors_of(proto, ["y"], x=values(*size))
        assert y.size // 4 == rows * images


@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "in the model" not in name and "unnamed" not in name])
def test_a_file_for_a_fixed_number_of_images_has_the_same_rows(layout: str, images: int, tmp_path: Path) -> None:
    shape, nodes = LAYOUTS[layout]
    fixed = [images, *(shape or ())[1:]]
    assert layer_of(tmp_path, product(fixed, nodes)).rows == layer_of(tmp_path, product(shape, nodes)).rows


def test_a_given_input_shape_counts_images_as_the_file_names_them(tmp_path: Path) -> None:
    path = save(tmp_path, product(["length", "batch", 6], [node("Reshape", "x flat", "r")]))
    [fixed, left_open] = [read_checkpoint(path, {"x": shape}) for shape in ((35, 2, 6), (35, None, 6))]
    assert [checkpoint.layers[0].rows for checkpoint in (fixed, left_open)] == [35, 35]
    assert (fixed.fixed_images, left_open.fixed_images) == (2, None)


@pytest.mark.parametrize(
    ("shape", "nodes"),
    [
        (["N", "length", 6], [node("Identity", "x", "r")]),
        (["N", "length", 6], [node("Reshape", "x flat", "r")]),
        ([1, "length", 6], [node("Identity", "x", "r")]),
        (["N", 7, 6], [node("Concat", "x once", "r", axis=0)]),
        (["N", 7, 6], [node("NonZero", "x", "z"), node("Cast", "z", "f", to=1), node("Reshape", "f flat", "r")]),
        (None, [node("Identity", "x", "r")]),
    ],
)
def test_rows_that_are_no_multiple_of_the_images_are_not_known(
    shape: Shape, nodes: list[onnx.NodeProto], tmp_path: Path
) -> None:
    proto = product(shape, nodes)
    proto.graph.initializer.extend(constants(once=values(1, 7, 6)))
    assert layer_of(tmp_path, proto).rows is None


def test_a_checkpoint_of_unknown_rows_says_how_to_give_them(tmp_path: Path) -> None:
    path = save(tmp_path, product(["N", "length", 6], [node("Reshape", "x flat", "r")]))
    [note] = read_checkpoint(path).notes
    assert "in 1 of 1 layers" in note
    assert f"tiled for {LIKELY_ROWS}" in note
    assert note.endswith("give --input-shape x:N,SIZE,6")
    checkpoint = read_checkpoint(path, {"x": (None, 128, 6)})
    assert (checkpoint.layers[0].rows, checkpoint.notes, checkpoint.fixed_images) == (128, (), None)


def test_a_checkpoint_names_no_option_that_would_not_help_with_rows(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "z"), node("Cast", "z", "f", to=1), node("Reshape", "f flat", "r")]
    [note] = read_checkpoint(save(tmp_path, product(["N", "length", 6], nodes))).notes
    assert "--input-shape" not in note


def test_a_residual_of_the_same_rows_is_found_in_any_layout(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x flat", "r"),
        node("MatMul", "r v", "c"),
        node("Shape", "x", "s"),
        node("Reshape", "c s", "d"),
        node("Reshape", "d flat", "e"),
        node("MatMul", "e v", "f"),
        node("Add", "f r", "y"),
    ]
    proto = model(nodes, constants(v=values(6, 6), **ARRAYS), inputs=[info("x", ["N", 7, 6])])
    layers = read_checkpoint(save(tmp_path, proto)).layers
    assert [(layer.rows, layer.residual) for layer in layers] == [(7, ""), (7, "r")]
