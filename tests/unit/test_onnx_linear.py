"""ONNX reader: Gemm and MatMul with one constant operand become fully connected layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.errors import CheckpointError
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import AddResidual, Clip, Linear
from tests.unit.onnx_models import (
    Shape,
    assert_layer_computes_its_output,
    constants,
    info,
    layer_of,
    model,
    node,
    save,
    values,
)


def product(
    operator: str, inputs: str, input_shape: Shape, *, attributes: Any = None, **arrays: Any
) -> onnx.ModelProto:
    """A model of one node with the input x and constants."""
    nodes = [node(operator, inputs, "y", "n", **(attributes or {}))]
    return model(nodes, constants(**arrays), inputs=[info("x", input_shape)])


W = values(5, 4)
"""[C, K]."""
BIAS = values(4, seed=1)

GEMMS: list[tuple[str, tuple[int, ...], dict[str, Any], dict[str, Any]]] = [
    ("x w", (3, 5), {}, {"w": W}),
    ("x w b", (3, 5), {}, {"w": W, "b": BIAS}),
    ("x w b", (3, 5), {"transB": 1, "alpha": 0.3, "beta": -2.0}, {"w": W.T, "b": BIAS}),
    ("x w b", (3, 5), {}, {"w": W, "b": BIAS[None]}),
    ("x w b", (3, 5), {}, {"w": W, "b": 1.5}),
    ("x w b", (3, 5), {"beta": 0.5}, {"w": W, "b": BIAS[:1]}),
    ("x w", (5, 1), {"transA": 1}, {"w": W}),
    ("w x b", (5, 1), {}, {"w": W.T, "b": BIAS[:, None]}),
    ("w x b", (5, 1), {"transA": 1, "alpha": 2.0}, {"w": W, "b": 2.0}),
    ("w x", (1, 5), {"transA": 1, "transB": 1}, {"w": W}),
]


@pytest.mark.parametrize(("inputs", "input_shape", "attributes", "arrays"), GEMMS)
def test_a_gemm_becomes_a_layer_that_computes_it(
    inputs: str, input_shape: tuple[int, ...], attributes: dict[str, Any], arrays: Any, tmp_path: Path
) -> None:
    proto = product("Gemm", inputs, input_shape, attributes=attributes, **arrays)
    layer = layer_of(tmp_path, proto)
    assert (layer.spec, layer.rows) == (Linear(5, 4), 1)
    assert_layer_computes_its_output(layer, proto, x=values(*input_shape, seed=2))


MATMULS: list[tuple[str, tuple[int, ...], Any, int]] = [
    ("x w", (3, 5), W, 1),
    ("x w", (5,), W, 1),
    ("x w", (2, 7, 5), W, 7),
    ("x w", (2, 7, 3, 5), W, 21),
    ("x w", (2, 7, 5), W[None], 7),
    ("x w", (5,), W[None, None], 1),
    ("w x", (5,), W.T, 1),
    ("w x", (5, 1), W.T, 1),
    ("w x", (2, 7, 5, 1), W.T, 7),
    ("w x", (2, 5, 1), W.T[None], 1),
]


@pytest.mark.parametrize(("inputs", "input_shape", "weights", "rows"), MATMULS)
def test_a_matrix_product_becomes_a_layer_that_computes_it(
    inputs: str, input_shape: tuple[int, ...], weights: Any, rows: int, tmp_path: Path
) -> None:
    proto = product("MatMul", inputs, input_shape, w=weights)
    layer = layer_of(tmp_path, proto)
    assert (layer.spec, layer.rows) == (Linear(5, 4), rows)
    np.testing.assert_array_equal(layer.weights.kernel, W.T)
    assert_layer_computes_its_output(layer, proto, x=values(*input_shape, seed=2))


@pytest.mark.parametrize("inputs", ["x w", "w x"])
def test_weights_of_one_dimension_are_one_kernel(inputs: str, tmp_path: Path) -> None:
    shape = (3, 5) if inputs == "x w" else (3, 5, 1)
    proto = product("MatMul", inputs, shape, w=W[:, 0])
    layer = layer_of(tmp_path, proto)
    assert layer.spec == Linear(5, 1)
    assert_layer_computes_its_output(layer, proto, x=values(*shape))


@pytest.mark.parametrize(
    ("input_shape", "rows"),
    [(["N", 7, 5], 7), (["N", "length", 5], None), (["N", "h", 3, 5], None), (["N", 5], 1), (None, None)],
)
def test_the_rows_of_an_image_are_those_that_the_model_says(
    input_shape: Shape, rows: int | None, tmp_path: Path
) -> None:
    assert layer_of(tmp_path, product("MatMul", "x w", input_shape, w=W)).rows == rows


def test_a_computed_summand_of_a_gemm_is_its_residual(tmp_path: Path) -> None:
    nodes = [node("Gemm", "x w r", "z", "fc", alpha=0.5), node("Relu", "z", "y")]
    inputs = [info("x", ["N", 5]), info("r", ["N", 4])]
    proto = model(nodes, constants(w=W), inputs=inputs)
    layer = layer_of(tmp_path, proto)
    assert (layer.residual, layer.spec.epilogue) == ("r", (AddResidual(), Clip(low=0.0)))
    assert_layer_computes_its_output(layer, proto, x=values(3, 5), r=values(3, 4, seed=1))


@pytest.mark.parametrize("shape", [["N", 1], [4], ["M", 4]])
def test_what_a_gemm_adds_of_another_shape_is_no_residual(shape: list[Any], tmp_path: Path) -> None:
    proto = model([node("Gemm", "x w r", "y")], constants(w=W), inputs=[info("x", ["N", 5]), info("r", shape)])
    with pytest.raises(CheckpointError, match="biases are computed while the model runs"):
        read_checkpoint(save(tmp_path, proto))


def test_weights_that_are_a_product_of_constants_are_computed(tmp_path: Path) -> None:
    nodes = [node("MatMul", "u v", "low"), node("Add", "w low", "sum"), node("MatMul", "x sum", "y", "fc")]
    u, v = values(5, 2, seed=2), values(2, 4, seed=3)
    proto = model(nodes, constants(w=W, u=u, v=v), inputs=[info("x", ["N", 5])])
    np.testing.assert_allclose(layer_of(tmp_path, proto).weights.kernel, (W + u @ v).T, rtol=1e-6)


def test_alpha_is_in_the_weights_and_beta_in_the_biases_rounded_once(tmp_path: Path) -> None:
    attributes = {"alpha": 0.1, "beta": 0.7}
    layer = layer_of(tmp_path, product("Gemm", "x w b", ["N", 5], attributes=attributes, w=W, b=BIAS))
    alpha, beta = (float(np.float32(attributes[name])) for name in ("alpha", "beta"))
    np.testing.assert_array_equal(layer.weights.kernel, (W.T.astype(np.float64) * alpha).astype(np.float32))
    np.testing.assert_array_equal(layer.weights.bias, (BIAS.astype(np.float64) * beta).astype(np.float32))


def test_a_constant_added_to_a_matrix_product_is_its_bias(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "z", "fc"), node("Add", "b z", "y", "plus")]
    proto = model(nodes, constants(w=W, b=BIAS), inputs=[info("x", ["N", "length", 5])])
    layer = layer_of(tmp_path, proto)
    np.testing.assert_array_equal(layer.weights.bias, BIAS)
    assert (layer.output, layer.folded) == ("y", ("Add plus",))


@pytest.mark.parametrize(
    ("operator", "inputs", "input_shape", "attributes", "arrays", "reason"),
    [
        ("Gemm", "x w", (5, 3), {"transA": 1}, {"w": W}, "multiplied by columns"),
        ("Gemm", "x w", (5, "N"), {"transA": 1}, {"w": W}, "multiplied by columns"),
        ("Gemm", "w x", (5, 3), {}, {"w": W.T}, "multiplied by columns"),
        ("Gemm", "x w b", (3, 5), {}, {"w": W, "b": values(3, 1)}, "differ from row to row"),
        ("Gemm", "x w b", (3, 5), {}, {"w": W, "b": values(3, 4)}, "differ from row to row"),
        ("Gemm", "x w x", (4, 4), {"beta": 2.0}, {"w": values(4, 4)}, "biases are computed while the model runs"),
        ("Gemm", "x w", (3, 5), {"alpha": 3e38}, {"w": W * 10}, "not finite"),
        ("MatMul", "w x", (5, 3), {}, {"w": W.T}, "multiplied by columns"),
        ("MatMul", "w x", None, {}, {"w": W.T}, "multiplied by columns"),
        ("MatMul", "x w", (2, 3, 5), {}, {"w": values(2, 5, 4)}, "several matrices"),
    ],
)
def test_a_product_that_is_not_rows_times_weights_is_the_reason(
    operator: str, inputs: str, input_shape: Shape, attributes: Any, arrays: Any, reason: str, tmp_path: Path
) -> None:
    proto = product(operator, inputs, input_shape, attributes=attributes, **arrays)
    with pytest.raises(CheckpointError, match=f"nothing to compile.*{reason}"):
        read_checkpoint(save(tmp_path, proto))


@pytest.mark.parametrize(
    ("operator", "inputs", "input_shape", "arrays", "fact"),
    [
        ("Gemm", "x w", (3, 6), {"w": W}, "do not fit an input"),
        ("Gemm", "x w", (2, 3, 5), {"w": W}, "do not fit an input"),
        ("Gemm", "x w", (3, 5), {"w": values(5)}, r"not \[C, K\]"),
        ("Gemm", "x w b", (3, 5), {"w": W, "b": values(3)}, r"biases of the shape \[3\] do not fit 4"),
        ("Gemm", "w x b", (5, 1), {"w": W.T, "b": values(4)}, r"biases of the shape \[4\] do not fit 4"),
        ("MatMul", "x w", (3, 6), {"w": W}, "do not fit an input"),
        ("MatMul", "x w", (3, 5), {"w": 2.0}, r"not \[C, K\]"),
        ("MatMul", "x w", (), {"w": W}, "do not fit an input"),
    ],
)
def test_a_product_that_cannot_be_run_is_an_error(
    operator: str, inputs: str, input_shape: Shape, arrays: Any, fact: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=f"layer 'n': .*{fact}"):
        read_checkpoint(save(tmp_path, product(operator, inputs, input_shape, **arrays)))
