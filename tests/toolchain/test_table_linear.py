"""Linear layers whose weights are a table: the table in PTX and in cubins, and the farm's way with such layers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.errors import EmulationError, PtxError
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Clip, Linear
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import tiled
from codegen.kernels.table_linear import table
from codegen.model_zoo.pruning import random_weights
from codegen.ptx.data_table import Tabled, declared, numbers
from codegen.ptx.rewrite import rewrite
from codegen.sass.cubin import CubinFile
from codegen.toolchain.temp_folders import TempFolder
from codegen.toolchain.tools import find_toolchain, run_tool
from farm.api import Farm
from farm.bundle.reader import Bundle
from farm.jobs.model import BuildOptions, Status
from tests.samples import checkpoint, layer
from tests.templates import LIMITS, shared_cubin, shared_template, verify_random_run

SPEC = Linear(300, 37, epilogue=(Clip(low=0.0),))
TILING = Tiling("table_linear", 128, 1, 1, 4, 128, 1)
WIDE = Linear(1024, 1000)


def weights_of(spec: Linear = SPEC) -> Weights:
    return random_weights(spec, 0.9, seed=3)


def test_the_code_of_a_layer_is_the_same_for_all_weights() -> None:
    template = shared_template(SPEC, TILING)
    codes = []
    for seed in (1, 2):
        cubin = shared_cubin(rewrite(template, random_weights(SPEC, 0.9, seed)).ptx, "sm_90", find_toolchain())
        codes.append(CubinFile.read(cubin).words.tobytes())
    assert codes[0] == codes[1]
    assert len(codes[0]) < 16 * 1024


def test_a_cubin_is_what_ptxas_makes_of_the_numbers() -> None:
    ptx, tools = rewrite(shared_template(SPEC, TILING), weights_of()).ptx, find_toolchain()
    with TempFolder("table") as scratch:
        (scratch / "kernel.ptx").write_bytes(ptx)
        run_tool(
            [str(tools.ptxas), "-arch=sm_90", "-O3", "-v", "-o", "kernel.cubin", "kernel.ptx"],
            limits=LIMITS,
            temp_folder=scratch,
        )
        by_ptxas = (scratch / "kernel.cubin").read_bytes()
    assert shared_cubin(ptx, "sm_90", tools) == by_ptxas


def test_ptxas_is_not_given_the_numbers() -> None:
    ptx = rewrite(shared_template(SPEC, TILING), weights_of()).ptx
    tabled = Tabled.of(ptx)
    assert tabled is not None
    assert len(tabled.ptx) < len(ptx) // 2
    assert re.search(rb"farm_table\[\d+\] = \{\n1\n\};", tabled.ptx)
    np.testing.assert_array_equal(tabled.table, table(tiled(SPEC, TILING), weights_of()))
    assert Tabled.of(tabled.ptx.replace(b"farm_table", b"another")) is None


def test_numbers_come_back_as_they_were_written() -> None:
    values = np.array([0, 1, 0x0123456789ABCDEF, 2**64 - 1], dtype=np.uint64)
    text = declared(values)
    np.testing.assert_array_equal(numbers(text[text.index(b"{\n") + 2 : text.index(b"};")]), values)
    with pytest.raises(PtxError, match="16 hexadecimal digits"):
        numbers(b"1, 2, 3\n")


def test_a_table_has_the_non_zeros_and_little_else() -> None:
    spec = Linear(4096, 64)
    tiling = Tiling("table_linear", 512, 1, 1, 16, 4096, 1)
    for of_type, each in ((spec, 6), (replace(spec, data_type="float16"), 4)):
        weights = random_weights(of_type, 0.9, seed=1)
        nonzeros = np.count_nonzero(weights.kernel)
        assert nonzeros * each <= table(tiled(of_type, tiling), weights).nbytes <= 1.3 * nonzeros * each


def test_lanes_seldom_meet_in_a_bank_of_shared_memory() -> None:
    spec, tiling = Linear(4096, 1), Tiling("table_linear", 32, 1, 1, 1, 4096, 1)
    words = table(tiled(spec, tiling), random_weights(spec, 0.9, seed=1)).view(np.uint32)
    units = words[64:].reshape(-1, 192)  # places, bias; then 128 weights and their columns
    columns = units[:, 128:].view(np.uint16).reshape(-1, 32, 4).astype(np.int64)
    there = columns < 4096
    most = [
        max(np.bincount(columns[u, there[u, :, i], i] % 32, minlength=32))
        for u in range(len(units))
        for i in range(4)
        if there[u, :, i].any()
    ]
    assert np.mean(most) < 2.2  # 3.5 in any other order


def test_a_kernel_cannot_write_into_its_table() -> None:
    ptx = rewrite(shared_template(SPEC, TILING), weights_of()).ptx.decode()
    kernel = rewrite(shared_template(SPEC, TILING), weights_of())
    into = re.sub(r"(mov\.u64 (%rd\d+),farm_table;)", r"\1 st.global.u32 [\2],0;", ptx)
    x, y = np.zeros((1, 300), np.float32), np.zeros((1, 37), np.float32)
    with pytest.raises(EmulationError, match="read-only"):
        emulate.run(into, kernel.launch.grid_at(1), kernel.launch.block, kernel.launch.shared_bytes, [x, y, 1])


def test_a_part_of_a_table_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="weights in a table, is one kernel"):
        rewrite(shared_template(SPEC, TILING), weights_of(), Part(0, 1))


def test_a_layer_of_a_job_is_one_cubin_that_computes_what_it_should_and_loads_from_its_bundle(
    farm: Farm, tmp_path: Path
) -> None:
    net = checkpoint(layer("fc", WIDE), layer("small", Linear(40, 6)))
    [job] = farm.compile([net], BuildOptions(("sm_80", "sm_90"), batches=(1,)))
    assert job.status is Status.SUCCEEDED, job.reason
    detail = farm.inspect(job.id)
    assert {build.layer: build.tiling.kernel for build in detail.builds} == {"fc": "table_linear", "small": "linear"}
    of_fc = [build for build in detail.builds if build.layer == "fc"]
    assert [build.tiling.waits for build in of_fc] == [False, True]
    assert {result.assembler for build in of_fc for result in detail.results_of(build)} == {"ptxas"}
    found = list(farm.verify(job.id))
    assert [each.verification.message for each in found] == [""] * len(found)
    assert {(each.layer, each.archs, each.where) for each in found} == {
        ("fc", ("sm_80",), "emulator"),
        ("fc", ("sm_90",), "emulator"),
        ("small", ("sm_80",), "machine code"),
        ("small", ("sm_90",), "machine code"),
    }
    farm.fetch(job.id, tmp_path / "out", ptx=True)
    bundle = Bundle(tmp_path / "out")
    [cubin] = bundle.layers["fc"].cubins_for("sm_90")
    assert len(CubinFile.read(bundle.cubin(cubin)).data) > 6 * np.count_nonzero(net.layers[0].weights.kernel)
    [later] = bundle.layers["fc"].cubins_for("sm_120")
    assert b"farm_table" in bundle.cubin(later)


def test_what_a_job_made_is_verified_on_rows_of_several_blocks() -> None:
    tiling = replace(TILING, images=2)
    found = verify_random_run(
        shared_template(SPEC, tiling), weights_of(), [Part(0, tiled(SPEC, tiling).streams.count)], batch=5
    )
    assert found.ok, found.message
    assert found.outputs_checked == 5 * 37
