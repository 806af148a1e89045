"""The layers of the method's paper at several sparsities, each with the tiling chosen for it."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Form
from codegen.model_zoo import TEN_OPERATORS, random_weights
from codegen.selection.choose import choose_parts, choose_tiling
from tests.templates import shared_template, verify_random_run

SPARSITIES = (0.0, 0.5, 0.9, 1.0)
SMALL_OPERATORS = ("lenet-conv1", "lenet-conv2", "alexnet-conv1")
"""Operators that compile quickly enough for every sparsity; the others have one."""
RELATIVE_ERROR = 1e-6


def chosen_and_verified(spec: Conv2d, sparsity: float, form: Form) -> None:
    weights = random_weights(spec, sparsity)
    nonzeros = weights.nonzeros_per_output
    # One template of the full form for all sparsities: nvcc takes seconds for each.
    tenth = np.full(spec.output_channels, spec.weights_count // spec.output_channels // 10)
    tiling = choose_tiling(spec, 64, tenth if form == "full" else nonzeros, form=form)
    found = verify_random_run(shared_template(spec, tiling), weights, choose_parts(spec, tiling, nonzeros))
    assert found.ok, found.message
    assert found.relative_error < RELATIVE_ERROR


@pytest.mark.parametrize(
    ("name", "sparsity"),
    [(name, sparsity) for name in TEN_OPERATORS for sparsity in (SPARSITIES if name in SMALL_OPERATORS else (0.9,))],
)
def test_the_ten_operators_compute_what_they_should(name: str, sparsity: float) -> None:
    chosen_and_verified(TEN_OPERATORS[name], sparsity, "rolled")


@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_the_full_form_computes_what_it_should(sparsity: float) -> None:
    chosen_and_verified(TEN_OPERATORS["lenet-conv1"], sparsity, "full")
