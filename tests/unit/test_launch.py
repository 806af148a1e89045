"""Launches: what is written of one is read back, and a cubin record without one is a miss."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.errors import EmulationError, LaunchError
from codegen.ir.launch import MOST_BLOCKS, Launch
from codegen.ir.layer_spec import Conv2d, DataType, LayerSpec, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import launch_of
from codegen.selection.choose import choose_parts, choose_tiling
from farm.cuda.device import LoadedKernel
from farm.store.memory import MemoryStore
from farm.worker.cache_lookup import CUBIN_STAGE, find_cubin
from farm.worker.messages import CubinFacts
from tests.samples import LAUNCH

KEY = "5a" * 32


@pytest.mark.parametrize("data_type", get_args(DataType))
def test_a_launch_is_read_back_as_it_was_written(data_type: DataType) -> None:
    names = ("input", "output", "residual", "images")
    placed = replace(LAUNCH, arguments=(*LAUNCH.arguments, "output_step"), output_step=4_800)
    read = replace(placed, arguments=(*placed.arguments, "input_step"), input_step=2_400)
    waiting = replace(LAUNCH, waits=True)
    for launch in (LAUNCH, replace(LAUNCH, arguments=names, data_type=data_type), placed, read, waiting):
        assert Launch.from_json(json.loads(json.dumps(launch.to_json()))) == launch


def test_a_convolution_says_how_far_apart_its_images_lie_in_an_output_of_its_own() -> None:
    spec, tiling = Conv2d(3, 9, 8, 4, 3, 3, stride=(2, 1)), Tiling("conv2d", 6, 4, 1, 4, 3, 2)
    launch = launch_of(spec, tiling)
    assert launch.arguments == ("input", "output", "images", "output_step")
    assert launch.output_step == 4 * 4 * 6
    assert launch.to_json()["arguments"][-1] == {"name": "output_step", "type": "int32", "contiguous": 96}
    assert launch_of(Linear(16, 8), Tiling("linear", 32, 1, 2, 8, 8, 2)).output_step is None


@pytest.mark.parametrize(
    "tiling", [Tiling("conv2d", 7, 7, 1, 4, 8, 2), Tiling("cluster_conv2d", 7, 7, 1, 4, 8, 3, cluster=2)]
)
def test_a_bounded_convolution_says_how_far_apart_the_images_of_its_input_lie(tiling: Tiling) -> None:
    spec = Conv2d(32, 7, 7, 8, 1, 1, bounded=True)
    launch = launch_of(spec, tiling)
    assert launch.arguments == ("input", "output", "images", "output_step", "input_step")
    assert launch.numbers(3) == {"images": 3, "output_step": 8 * 49, "input_step": 32 * 49}
    assert launch_of(replace(spec, bounded=False), tiling).input_step is None


@pytest.mark.parametrize(
    "damage",
    [
        {"grid": [{"fixed": 1, "images": None}]},
        {"grid": [{"blocks": 1}] * 3},
        {"block": [32, 1]},
        {"block": None},
        {"shared_bytes": "many"},
        {"arguments": []},
        {"arguments": [{"name": "input", "type": "float64*"}]},
        {"arguments": [{"name": "input", "type": "float32*"}, {"name": "output_step", "type": "int32"}]},
        {"arguments": [{"name": "input", "type": "float32*"}, {"name": "output", "type": "float16*"}]},
    ],
)
def test_what_is_no_launch_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Launch.from_json({**LAUNCH.to_json(), **damage})


def test_a_cubin_record_without_its_launch_is_a_miss() -> None:
    store = MemoryStore()
    facts = CubinFacts(store.put(b"cubin"), 5, "ef" * 32, "ef" * 32, 11, 97, 25, 0, 0.1, 0.2, LAUNCH)
    record = facts.to_json()
    store.put_record(CUBIN_STAGE, KEY, record)
    found = find_cubin(store, KEY)
    assert found is not None
    assert isinstance(found.made, CubinFacts)
    assert found.made.launch == LAUNCH
    store.put_record(CUBIN_STAGE, KEY, {name: value for name, value in record.items() if name != "launch"})
    assert find_cubin(store, KEY) is None


ONE_A_BLOCK = Conv2d(3, 8, 8, 4, 3, 3)
TILING = Tiling("conv2d", 8, 8, 1, 4, 3, 2)


@pytest.mark.parametrize(
    ("spec", "tiling", "limit"),
    [
        (ONE_A_BLOCK, TILING, 65_535),
        (ONE_A_BLOCK, replace(TILING, images=4), 4 * 65_535),
        (replace(ONE_A_BLOCK, data_type="float16"), replace(TILING, images=2), 2 * 65_535),
        (Linear(16, 8), Tiling("linear", 32, 1, 2, 8, 8, 2), 2**30),
    ],
)
def test_a_launch_takes_as_many_images_as_a_grid_has_blocks_for(spec: LayerSpec, tiling: Tiling, limit: int) -> None:
    launch = launch_of(spec, tiling)
    assert launch.images_limit == limit
    assert all(size <= most for size, most in zip(launch.grid_at(limit), MOST_BLOCKS, strict=True))
    with pytest.raises(LaunchError, match=f"at most {limit:,} images at a time"):
        launch.grid_at(limit + 1)


def test_a_tiling_is_chosen_for_more_images_than_one_launch_takes() -> None:
    tiling = choose_tiling(ONE_A_BLOCK, 10**6, np.full(4, 3))
    assert launch_of(ONE_A_BLOCK, tiling).images_limit >= 65_535


@pytest.mark.parametrize("data_type", get_args(DataType))
def test_no_part_of_a_layer_has_more_k_groups_than_a_grid(data_type: DataType) -> None:
    spec = Linear(1, 150_000, data_type=data_type)
    nonzeros = np.zeros(spec.outputs, np.int64)
    chosen = choose_tiling(spec, 1, nonzeros, code_limit_bytes=10**9, tables=False)
    tiling = replace(chosen, group_outputs=1)
    parts = choose_parts(spec, tiling, nonzeros)
    assert sum(part.end - part.first for part in parts) == spec.outputs
    for part in parts:
        assert launch_of(spec, tiling, part).grid_at(1)[2] == part.end - part.first <= 65_535


@pytest.mark.parametrize("grid", [(1, 65_536, 1), (1, 1, 65_536), (2**31, 1, 1)])
def test_the_emulator_runs_no_grid_that_a_gpu_would_not(grid: tuple[int, int, int]) -> None:
    ptx = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n"
    emulate.run(ptx, (1, 1, 1), (1, 1, 1), 0, [])
    with pytest.raises(EmulationError, match="no GPU takes more than"):
        emulate.run(ptx, grid, (1, 1, 1), 0, [], blocks=[(0, 0, 0)])


def test_a_kernel_on_the_gpu_is_not_launched_with_more_images_than_it_takes() -> None:
    launched = []
    kernel = LoadedKernel(lambda *arguments, **options: launched.append(options["grid"]), LAUNCH)
    kernel(0, 0, LAUNCH.images_limit)
    with pytest.raises(LaunchError, match=f"at most {LAUNCH.images_limit:,}"):
        kernel(0, 0, LAUNCH.images_limit + 1)
    assert launched == [(2, 65_535, 3)]
