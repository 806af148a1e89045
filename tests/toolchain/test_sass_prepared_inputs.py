"""Bounds and gates in the direct assembler: outputs bit for bit those of the PTX and of ptxas's cubins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codegen.ptx.rewrite import rewrite
from codegen.sass.cubin import CubinFile
from codegen.sass.verify.hazards import check_cubin
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from tests.toolchain.bound_cases import BOUND_CASES, FINISHED, TWO_ROWS, assert_same, both_sides, odd_input
from tests.toolchain.gate_cases import GATE_CASES
from tests.toolchain.machine_case import ARCH, MASKS, computed, directly, expected, template_of, weights_of

PREPARED = {
    **BOUND_CASES,
    **{name: case for name, case in GATE_CASES.items() if case.spec.data_type != "float16"},
}
ONE_ROW = ("bounded inputs", "gates")
CLUSTERS = ("bounded inputs, a cluster", "gates in a cluster, tiles of a map")
TWO_ROWS_OR_IMAGES = (
    TWO_ROWS,
    FINISHED,
    "gates, stride 2, two rows a thread",
    "gates and a residual, several images a block",
)


@pytest.mark.parametrize("name", PREPARED)
@pytest.mark.parametrize("density", [0.15, 0.6])
def test_prepared_inputs_give_bit_for_bit_what_the_ptx_does(name: str, density: float) -> None:
    case = PREPARED[name]
    weights = weights_of(case, density)
    np.testing.assert_array_equal(computed(case, weights, directly(case, weights)), expected(case, weights))


@pytest.mark.parametrize("name", [*ONE_ROW, *CLUSTERS, *TWO_ROWS_OR_IMAGES])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_at_their_edges_give_bit_for_bit_what_the_ptx_does(name: str, mask: str) -> None:
    case = PREPARED[name]
    weights = weights_of(case, 1.0, mask)
    np.testing.assert_array_equal(computed(case, weights, directly(case, weights)), expected(case, weights))


@pytest.mark.parametrize("name", [*ONE_ROW, *CLUSTERS])
def test_cubins_of_ptxas_compute_the_same_bits(name: str) -> None:
    case = PREPARED[name]
    weights, x = weights_of(case, 0.5), odd_input(case)
    if case.spec.bounded:
        weights = replace(weights, bounds=both_sides(case))
    by_ptxas = CubinFile.read(assemble(rewrite(template_of(case), weights).ptx, ARCH, find_toolchain()).data)
    check_cubin(by_ptxas)
    assert_same(computed(case, weights, by_ptxas, x), computed(case, weights, directly(case, weights), x))
