"""Large blocks of linear layers with several K groups: rows of threads that follow streams of their own."""

from __future__ import annotations

import pytest

from codegen.errors import TilingError
from codegen.ir.epilogue import Gelu
from codegen.ir.layer_spec import Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import tiled
from tests.templates import verify_random_run
from tests.toolchain.machine_case import directly, template_of, weights_of, whole_layer
from tests.toolchain.operator_case import RESIDUAL, Case

CASES = {
    "two K groups": Case(Linear(96, 96, epilogue=(Gelu(),)), Tiling("linear", 320, 2, 1, 24, 32, 2), batch=400),
    "a K group beyond the last output": Case(
        Linear(96, 96, epilogue=RESIDUAL), Tiling("linear", 160, 2, 1, 32, 32, 2), batch=200
    ),
    "all groups of some rows together": Case(
        Linear(96, 100), Tiling("linear", 96, 4, 1, 16, 32, 3, order="place"), batch=200
    ),
    "a cluster": Case(
        Linear(128, 100), Tiling("linear", 320, 2, 1, 24, 32, 2, cluster=2), batch=400, virtual_arch="compute_90"
    ),
    "float16": Case(
        Linear(128, 100, data_type="float16"), Tiling("linear", 224, 2, 1, 32, 64, 2, "float16"), batch=450
    ),
    "float16 in a cluster": Case(
        Linear(128, 96, data_type="float16"),
        Tiling("linear", 160, 2, 1, 24, 64, 2, cluster=2),
        batch=350,
        virtual_arch="compute_90",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_row_of_threads_computes_its_own_k_group(case: Case) -> None:
    found = verify_random_run(template_of(case), weights_of(case, 0.4), [whole_layer(case)], batch=case.batch)
    assert not found.message


@pytest.mark.parametrize("name", ["two K groups", "a cluster", "float16"])
def test_their_machine_code_computes_what_their_ptx_does(name: str) -> None:
    case = CASES[name]
    weights = weights_of(case, 0.4)
    cubins = [directly(case, weights).data]
    found = verify_random_run(template_of(case), weights, [whole_layer(case)], cubins=cubins, batch=case.batch)
    assert not found.message


def test_two_k_groups_of_a_block_read_its_rows_once() -> None:
    spec = Linear(96, 96)
    one, two = (tiled(spec, Tiling("linear", 320, groups, 1, 24, 32, 2)) for groups in (1, 2))
    assert two.launch.grid_at(400)[2] * 2 == one.launch.grid_at(400)[2]
    assert two.workload.tile_bytes == one.workload.tile_bytes
    assert two.workload.copies * 2 == one.workload.copies


@pytest.mark.parametrize("tiling", [Tiling("linear", 64, 2, 1, 24, 32, 2), Tiling("linear", 200, 2, 1, 24, 32, 2)])
def test_small_blocks_and_parts_of_warps_have_one_k_group(tiling: Tiling) -> None:
    with pytest.raises(TilingError, match="several K groups"):
        tiled(Linear(96, 96), tiling)
