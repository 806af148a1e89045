"""Verification of a layer samples the right blocks and finds wrong outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import AddResidual
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import launch_of, tiled
from codegen.model_zoo import TEN_OPERATORS
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.verification.compare import LayerRun, random_input, random_residual, sample_blocks, verify_output
from tests.templates import verify_random_run
from tests.toolchain.operator_cases import CASES
from tests.toolchain.operator_run import half_of_the_weights, run, template_of


def test_sampled_blocks_see_every_group_every_corner_and_every_edge() -> None:
    spec = TEN_OPERATORS["vgg-conv3"]
    tiling = Tiling("conv2d", 16, 8, 1, 32, 4, 2)
    grid = launch_of(spec, tiling).grid_at(2)
    down, across = tiled(spec, tiling).tiles
    blocks = sample_blocks(tiled(spec, tiling), grid, seed=3)
    assert len(blocks) < grid[0] * grid[1] * grid[2]
    for group in range(grid[2]):
        places = {divmod(x, across) for x, _, z in blocks if z == group}
        assert {(0, 0), (0, across - 1), (down - 1, 0), (down - 1, across - 1)} <= places
        assert any(row == 0 and 0 < column < across - 1 for row, column in places)
        assert any(row == down - 1 and 0 < column < across - 1 for row, column in places)
        assert any(column == 0 and 0 < row < down - 1 for row, column in places)
        assert any(column == across - 1 and 0 < row < down - 1 for row, column in places)
    assert {y for _, y, _ in blocks} == {0, 1}


@pytest.mark.parametrize(
    "name", ["channels and kernels that do not divide", "linear, copied by fours", "float16, added up in float32"]
)
def test_a_wrong_weight_and_a_missing_output_are_noticed(name: str) -> None:
    case = CASES[name]
    weights, x = half_of_the_weights(case.spec), random_input(case.spec, case.batch, seed=0)
    residual = random_residual(case.spec, case.batch, seed=0)
    wrong = Weights(weights.kernel.copy(), weights.bias, weights.bounds)
    wrong.kernel[np.nonzero(wrong.kernel)] *= np.float32(1.25)

    def found(output: NDArray[Any]) -> str:
        return verify_output(LayerRun(case.spec, case.tiling, weights, x, output, residual)).message

    right = run([rewrite(template_of(case), weights)], case, x)
    assert not found(right)
    assert "error bound" in found(run([rewrite(template_of(case), wrong)], case, x))
    assert "were not written" in found(run([rewrite(template_of(case), weights, Part(0, 1))], case, x))


def test_an_output_written_where_none_belongs_is_noticed() -> None:
    case = CASES["channels and kernels that do not divide"]
    template, weights = template_of(case), half_of_the_weights(case.spec)
    plane = 4 * 9 * 11
    assert AddResidual() not in case.spec.epilogue
    last = f"+{3 * plane}],v; }} // farm.store 3"
    assert template.ptx.count(last) == 1
    stray = template.ptx.replace(last, last.replace(f"+{3 * plane}", f"+{4 * plane}"))
    assert verify_random_run(template, weights, [Part(0, 1)]).ok
    message = verify_random_run(Template.from_ptx(stray), weights, [Part(0, 1)]).message
    assert "outputs written outside the blocks that ran" in message
