"""At least 500 drawn layers: generated code agrees with onnxruntime and with float64, within derived bounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, example, given, seed, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from codegen.ir.layer_spec import DataType
from tests.conftest import DRAWN_LAYERS
from tests.differential.comparison import Agreement, Pipeline, agreement, share
from tests.differential.drawn_layers import DTYPES, DrawnLayer, Recipe, places, recipes
from tests.differential.evaluation import evaluate
from tests.differential.geometries import OPERATORS, STEPS, Geometry, geometries, wide_convolutions
from tests.differential.listed_geometries import GEOMETRIES, NOT_ALL_FOLDED
from tests.differential.pipeline import Output
from tests.differential.runtime import run_onnxruntime

LAYERS_OF_LANDING = 500
DRAWS = 13
"""Least number of draws of each geometry."""
EXAMPLES = 16
"""Hypothesis draws a few things twice."""
DRAWINGS, LAYERS_OF_DRAWING = 4, 12
"""Layers whose geometry and tiling are drawn too: a template for each, a second or so."""


@pytest.mark.parametrize("name", GEOMETRIES)
def test_generated_code_agrees_with_onnxruntime_and_float64(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    geometry = GEOMETRIES[name]
    found: dict[str, Agreement] = {}

    # One geometry's draws are not another's, and always the same, also after a geometry is added.
    @seed(crc32(name.encode()))
    @settings(max_examples=EXAMPLES, database=None, phases=[Phase.generate, Phase.shrink])
    @given(recipes())
    def agrees(recipe: Recipe) -> None:
        layer = DrawnLayer(geometry, recipe)
        found[layer.line] = seen = agreement(layer)
        assert seen.ok, f"{seen}\npython -m tests.differential --case '{layer.line}'"
        assert seen.tensor == "y" or name in NOT_ALL_FOLDED

    agrees()
    assert len(found) >= DRAWS
    record(record_property, found)


@pytest.mark.parametrize("number", range(DRAWINGS))
@pytest.mark.parametrize("drawn", [wide_convolutions(), geometries()], ids=["wide", "any"])
def test_drawn_layers_agree_with_any_tiling_that_they_can_be_given(
    drawn: st.SearchStrategy[Geometry], number: int, record_property: Callable[[str, object], None]
) -> None:
    found: dict[str, Agreement] = {}

    @seed(number)
    @settings(
        max_examples=LAYERS_OF_DRAWING, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(drawn, recipes(), places())
    def agrees(geometry: Geometry, recipe: Recipe, place: float) -> None:
        layer = DrawnLayer(geometry, recipe, place)
        found[layer.line] = seen = agreement(layer)
        assert seen.ok, f"{seen}\npython -m tests.differential --case '{layer.line}'"

    agrees()
    record(record_property, found)


def record(record_property: Callable[[str, object], None], found: Mapping[str, Agreement]) -> None:
    """Records what the summary of a test run counts; layers by their lines."""
    for line, seen in found.items():
        geometry = DrawnLayer.from_line(line).geometry
        compared = {"operator": geometry.operator, "layers": 1, "worst": seen.worst}
        record_property(DRAWN_LAYERS, json.dumps({**compared, "onnxruntime": geometry.runs_in_onnxruntime}))


def test_a_landing_compares_at_least_500_layers_with_onnxruntime() -> None:
    comparable = [geometry for geometry in GEOMETRIES.values() if geometry.runs_in_onnxruntime]
    assert DRAWS * len(comparable) >= LAYERS_OF_LANDING


def test_the_listed_geometries_have_every_value_of_every_attribute() -> None:
    listed = list(GEOMETRIES.values())
    assert {each.operator for each in listed} == set(OPERATORS)
    assert {step for each in listed for step in each.steps} == set(STEPS)
    assert {each.data_type for each in listed} == {"float32", "float16", "bfloat16"}
    for operator in ("Conv", "ConvTranspose"):
        convolutions = [each for each in listed if each.operator == operator]
        assert {len(each.size) for each in convolutions} == {1, 2}
        assert any(each.group == each.channels > 1 for each in convolutions)
        assert any(1 < each.group < each.channels for each in convolutions)
        assert any(max(each.dilations, default=1) > 1 for each in convolutions)
        assert any(max(each.strides, default=1) > 1 for each in convolutions)
        assert {each.bias for each in convolutions} == {True, False}
    assert {each.auto_pad for each in listed} == {"", "VALID", "SAME_UPPER", "SAME_LOWER"}
    assert {1, 2, 3, 4, 5, 7, 9, 11} <= {size for each in listed for size in each.window}


ONE_NUMBER = Geometry("Conv", 2, 1, (1,), (1,), bias=False, steps=("multiply_scalar",), batch=1)
"""A scalar times an output of one number, in this order: only one of them has an error."""


@settings(max_examples=100)
@example(ONE_NUMBER, Recipe(0, sparsity=0.0))
@given(geometries(), recipes())
def test_a_drawn_model_is_valid_and_onnxruntime_is_within_its_bound(geometry: Geometry, recipe: Recipe) -> None:
    layer = DrawnLayer(geometry, recipe)
    assert DrawnLayer.from_line(layer.line) == layer
    onnx.checker.check_model(layer.model, full_check=True)
    exact = evaluate(layer.model, layer.inputs)
    assert exact["y"].value.shape == geometry.final_shape
    if geometry.runs_in_onnxruntime:
        for name, theirs in run_onnxruntime(layer.model, layer.inputs).items():
            assert share(theirs.astype(np.float64), exact[name].value, exact[name].error) <= 1


LAYER = DrawnLayer(GEOMETRIES["residual after batch normalisation"], Recipe(3))


def pretended(change: Callable[[Output], Output]) -> Pipeline:
    """A pipeline that returns onnxruntime's output as generated code's, with the bound of generated code."""

    def run(path: Path, inputs: Mapping[str, NDArray[Any]], virtual_arch: str, place: float) -> dict[str, Output]:
        model = onnx.load(path)
        right = Output(run_onnxruntime(model, inputs)["y"].astype(np.float64), evaluate(model, inputs)["y"].error)
        return {"y": change(right)}

    return run


def test_outputs_within_the_bound_agree() -> None:
    seen = agreement(LAYER, pretended(lambda right: right))
    assert seen.ok
    assert seen.of_onnxruntime == 0


def with_first(output: Output, value: float) -> Output:
    values = output.values.copy()
    values.flat[0] = value
    return replace(output, values=values)


WRONG: dict[str, Callable[[Output], Output]] = {
    "a thousandth more": lambda right: replace(right, values=right.values * 1.001),
    "one output missing": lambda right: with_first(right, np.nan),
    "one output infinite": lambda right: with_first(right, np.inf),
    "one output off": lambda right: with_first(right, right.values.flat[0] + 1e-4),
    "images in another order": lambda right: replace(right, values=right.values[::-1]),
    "another shape that holds as much": lambda right: replace(
        right, values=right.values.reshape(right.values.shape[::-1])
    ),
    "a bound that allows anything": lambda right: replace(right, bound=np.full_like(right.bound, np.inf)),
}


@pytest.mark.parametrize("how", WRONG)
def test_wrong_outputs_are_noticed(how: str) -> None:
    assert not agreement(LAYER, pretended(WRONG[how])).ok


def test_weights_are_as_sparse_as_drawn_and_their_zeros_are_of_both_signs() -> None:
    weights = Recipe(0, sparsity=0.5, empty_slices=(0.3, 0.3), negative_zeros=True).weights((40, 50, 3, 3), np.float32)
    empty = [~weights.any(axis=tuple({0, 1, 2, 3} - {axis})) for axis in (0, 1)]
    assert all(0 < slices.sum() < len(slices) for slices in empty)
    dense = weights[~empty[0]][:, ~empty[1]]
    assert 0.45 < np.count_nonzero(dense) / dense.size < 0.55
    assert len(np.unique(np.signbit(weights[weights == 0]))) == 2
    assert Recipe(0, sparsity=0.0).weights((9, 9), np.float32).all()
    assert not Recipe(0, sparsity=1.0).weights((9, 9), np.float32).any()


@pytest.mark.parametrize("data_type", DTYPES)
def test_drawn_weights_include_subnormals_and_the_largest_value(data_type: DataType) -> None:
    dtype = DTYPES[data_type]
    limits = ml_dtypes.finfo(dtype)
    subnormal = np.abs(Recipe(0, "subnormal", 0.0).weights((20, 20), dtype).astype(np.float64))
    assert (subnormal > 0).any()
    assert (subnormal[subnormal > 0].min()) < float(limits.smallest_normal)
    assert set(np.abs(Recipe(0, "largest", 0.0).weights((9, 9), dtype).astype(np.float64)).flat) == {float(limits.max)}
