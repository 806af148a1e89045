"""Tables of a linear layer: when they are chosen, and how the farm treats such tilings."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from numpy.typing import NDArray

from codegen.errors import TilingError
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import Conv2d, DataType, Linear
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import launch_of, stream_count, tiled
from codegen.kernels.workload import SHARED_BYTES
from codegen.sass.qualification import assembler_for
from codegen.selection.alternatives import LARGE_TABLE_ROWS, TABLE_ROWS
from codegen.selection.choose import choose_parts, choose_tiling, misfit_of, ranked_tilings
from codegen.selection.code_size import stream_instructions
from codegen.selection.cost_model import predict_microseconds
from farm.jobs.submission import new_job
from farm.tuning.record import tiling_of_json
from farm.worker.messages import CubinRequest, TemplateRequest
from tests.samples import checkpoint, layer

LARGE = Linear(25088, 4096)
"""A layer whose code would have 170 MB at a tenth of its weights."""
LAST = Linear(2048, 1000)
SMALL = Linear(84, 10)
TABLE = Tiling("table_linear", 256, 1, 1, 8, 2048, 1)


def share(spec: Linear, density: float = 0.1) -> NDArray[np.int64]:
    return np.full(spec.outputs, round(density * spec.inputs))


@pytest.mark.parametrize("data_type", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("spec", [LARGE, LAST, Linear(1024, 1024)], ids=str)
def test_weights_that_few_rows_use_are_a_table(spec: Linear, data_type: DataType) -> None:
    spec = replace(spec, data_type=data_type)
    for rows in (1, 4):
        tiling = choose_tiling(spec, rows, share(spec), clusters=True)
        assert tiling.kernel == "table_linear"
        assert tiling == ranked_tilings(spec, rows, share(spec), clusters=True)[0]
        assert launch_of(spec, tiling).shared_bytes <= SHARED_BYTES
        assert launch_of(spec, tiling).grid_at(rows)[0] == -(-rows // tiling.images)


@pytest.mark.parametrize(
    ("spec", "most"),
    [
        (LAST, TABLE_ROWS),
        (LARGE, TABLE_ROWS),
        (replace(LAST, data_type="float16"), TABLE_ROWS),
        (replace(LARGE, data_type="float16"), LARGE_TABLE_ROWS),
    ],
    ids=str,
)
def test_weights_that_many_rows_use_are_code(spec: Linear, most: int) -> None:
    def kernels(rows: int) -> set[str]:
        found = ranked_tilings(spec, rows, share(spec), clusters=True, code_limit_bytes=10**9)
        return {each.kernel for each in found}

    assert "table_linear" in kernels(most)
    assert kernels(2 * most) <= {"linear"}


def test_weights_of_too_much_code_for_many_rows_are_refused() -> None:
    with pytest.raises(TilingError, match="bytes a non-zero weight"):
        choose_tiling(LARGE, 64, share(LARGE))


@pytest.mark.parametrize("data_type", ["float32", "float16", "bfloat16"])
def test_weights_whose_code_would_be_too_large_are_a_table_for_some_rows(data_type: DataType) -> None:
    large = replace(LARGE, data_type=data_type)
    assert choose_tiling(large, 8, share(large), clusters=True).kernel == "table_linear"


def test_small_layers_stay_code() -> None:
    assert choose_tiling(SMALL, 1, share(SMALL), clusters=True).kernel == "linear"
    assert "table_linear" in {each.kernel for each in ranked_tilings(SMALL, 1, share(SMALL))}


def test_a_table_of_most_weights_is_not_made() -> None:
    assert not any(each.reads_table for each in ranked_tilings(LAST, 1, share(LAST, 0.6), code_limit_bytes=10**9))


def test_a_full_template_that_is_asked_for_is_no_table() -> None:
    spec = Conv2d(3, 8, 8, 4, 3, 3)
    assert choose_tiling(spec, 1, np.full(4, 3), form="full").form == "full"
    with pytest.raises(TilingError, match="the full form"):
        choose_tiling(LAST, 1, share(LAST), form="full")


def test_a_table_is_one_kernel_of_little_code_whatever_the_weights_are() -> None:
    for nonzeros in (share(LAST), np.array([2048, *[0] * 999]), np.zeros(1000, dtype=np.int64)):
        assert misfit_of(LAST, TABLE, nonzeros) == ""
        assert choose_parts(LAST, TABLE, nonzeros) == (Part(0, stream_count(LAST, TABLE)),)
        assert stream_instructions(LAST, TABLE, nonzeros).sum() < 2000


def test_more_rows_than_a_block_has_take_longer() -> None:
    for images in (1, 2, 4):
        tiling = replace(TABLE, images=images, chunk_channels=2048)
        times = [predict_microseconds(tiled(LAST, tiling), rows, 0.1) for rows in (1, 5, 9)]
        assert sorted(set(times)) == times


def test_the_rows_of_an_input_are_one_access_to_shared_memory() -> None:
    eight = replace(TABLE, images=8, chunk_channels=1024)
    assert tiled(replace(LAST, data_type="float16"), eight).launch.shared_bytes == 16 * 1025
    for spec, images in ((LAST, 8), (LAST, 3), (replace(LAST, data_type="float16"), 6)):
        with pytest.raises(TilingError, match="are not one access"):
            tiled(spec, replace(eight, images=images))


def test_ptxas_makes_it_whoever_is_asked_for() -> None:
    for choice in ("auto", "direct", "patch"):
        made_by, reason = assembler_for(choice, LAST, TABLE, "sm_90", "13.0.88")
        assert made_by == "ptxas"
        assert "table" in reason


def test_a_record_and_a_launch_keep_what_it_is() -> None:
    assert tiling_of_json(TABLE.to_json()) == TABLE
    record = json.loads(files("farm.tuning").joinpath("tuning.schema.json").read_text())["$defs"]["record"]
    Draft202012Validator(record["properties"]["tiling"]).validate(TABLE.to_json())
    launch = launch_of(LAST, TABLE)
    assert Launch.from_json(launch.to_json()) == launch
    with pytest.raises(ValueError, match="cannot be chosen"):
        tiling_of_json(replace(TABLE, form="full").to_json())


def test_what_is_held_in_memory_grows_with_all_weights_and_not_as_ptxas_does() -> None:
    def needed(spec: Linear) -> int:
        template = TemplateRequest(spec, TABLE, "compute_80", "ab" * 32, 0)
        part = Part(0, stream_count(spec, TABLE))
        return CubinRequest(template, "cd" * 32, part, "sm_90", (), "ef" * 32, spec.weights_count // 10).memory_bytes

    assert 4 * LARGE.weights_count * 2 < needed(LARGE) <= 4 * 2**30
    assert needed(LAST) <= 2**29


def test_the_limit_of_a_layers_code_is_none_of_its_tables() -> None:
    from farm.jobs.model import BuildOptions

    net = checkpoint(layer("fc", Linear(4096, 512)))
    for limit in (16_000_000, 20_000):
        job = new_job(
            net, BuildOptions(("sm_90",), batches=(1,), code_limit_bytes=limit), namespace="", name="net", store=None
        )
        assert [build.tiling.kernel for build in job.builds] == ["table_linear"]
        assert not job.skipped
