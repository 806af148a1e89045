"""Kernels that begin before the one ahead of them has ended: what they read before they wait, and what they compute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from codegen.errors import TilingError
from codegen.ir.layer_spec import AddResidual, Conv2d, DataType, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import launch_of, needs_clusters
from codegen.ptx.rewrite import rewrite
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.encoding import OPCODE
from codegen.sass.isa.opcodes import ACQBULK, KIND_MASK
from codegen.toolchain.tools import find_toolchain
from tests.templates import shared_cubin
from tests.toolchain.cluster_cases import CLUSTER_CASES
from tests.toolchain.gate_cases import GATE_CASES
from tests.toolchain.machine_case import ARCH, computed, directly, expected, template_of, weights_of
from tests.toolchain.operator_case import HALVES, PAD, RESIDUAL, Case
from tests.toolchain.pool_cases import POOL_CASES

READS_TO_REGISTERS = (0x180, 0x181)
"""LD and LDG."""
READS_OF_MEMORY = (*READS_TO_REGISTERS, 0x1AE)
"""With LDGSTS."""
READ_IN_PTX = re.compile(r"^(?:\{ .*)?(?:@%?\w+ )?(?:ld\.global|cp\.async\.c[ag])", re.MULTILINE)
DATA_TYPES: tuple[DataType, ...] = ("float32", "float16", "bfloat16")


def waiting(case: Case) -> Case:
    return replace(case, tiling=replace(case.tiling, waits=True), virtual_arch="compute_90")


CASES = {
    "float32": Case(Conv2d(5, 9, 11, 7, 3, 3, padding=PAD, epilogue=RESIDUAL), Tiling("conv2d", 8, 4, 1, 4, 2, 2)),
    "float16, one chunk": Case(replace(HALVES, epilogue=(AddResidual(),)), Tiling("conv2d", 4, 4, 1, 4, 5, 2)),
    "float16": Case(HALVES, Tiling("conv2d", 4, 4, 1, 4, 2, 2)),
    "1x1, float16, in pieces": Case(
        Conv2d(16, 8, 12, 10, 1, 1, data_type="float16"), Tiling("conv2d", 32, 1, 1, 5, 8, 2)
    ),
    "linear": Case(Linear(41, 10, epilogue=RESIDUAL), Tiling("linear", 32, 1, 2, 4, 8, 2), batch=70),
    "linear, float16": Case(
        Linear(41, 10, epilogue=RESIDUAL, data_type="float16"), Tiling("linear", 32, 1, 2, 4, 8, 2), batch=70
    ),
    "cluster": CLUSTER_CASES["a cluster of two, kernels that do not divide"],
    "float16, cluster": CLUSTER_CASES["float16, a cluster of four, pairs of images, kernels that do not divide"],
    "gates": GATE_CASES["gates and a residual, several images a block"],
    "pool": next(iter(POOL_CASES.values())),
}


LINEAR_TABLES = {
    f"table_linear, {data_type}, {images} rows": Case(
        Linear(300, 37, epilogue=RESIDUAL, data_type=data_type),
        Tiling("table_linear", 128, 1, 1, 4, 128, 1, images=images),
        batch=3,
    )
    for data_type in DATA_TYPES
    for images in (1, 2)
}
CONV_TABLES = {
    f"table_conv2d, {data_type}, {name}": Case(replace(spec, data_type=data_type), tiling)
    for data_type in DATA_TYPES
    for name, spec, tiling in (
        ("1x1", Conv2d(24, 6, 8, 13, 1, 1, epilogue=RESIDUAL), Tiling("table_conv2d", 24, 1, 1, 5, 24, 1)),
        ("pairs", Conv2d(10, 14, 14, 13, 3, 3, padding=PAD), Tiling("table_conv2d", 14, 2, 2, 4, 3, 1)),
    )
}
ALL = CASES | LINEAR_TABLES | CONV_TABLES


def ptx_of(name: str) -> str:
    """The PTX of a case whose kernel waits: those of convolutions with a table always do."""
    case = ALL[name] if name in CONV_TABLES else waiting(ALL[name])
    return rewrite(template_of(case), weights_of(case, 0.3)).ptx.decode()


def reads_of(lines: Sequence[str], parameters: str) -> list[str]:
    """The lines that read memory at an address made of these parameters."""
    parameter = re.compile(rf"ld\.param\.u64\s+(%rd\d+),\s*\[{parameters}\];")
    reached = {match[1] for line in lines if (match := parameter.match(line))}
    reads = []
    for line in lines:
        names = re.findall(r"%rd\d+", line)
        if READ_IN_PTX.match(line) and reached & set(names):
            reads.append(line)
        elif reached & set(names[1:]):
            reached.add(names[0])
    return reads


@pytest.mark.parametrize("name", ALL)
def test_a_kernel_reads_nothing_but_its_table_before_it_waits(name: str) -> None:
    before, waits, after = ptx_of(name).partition("griddepcontrol.wait;")
    assert waits
    assert "griddepcontrol.wait" not in after
    assert bool(READ_IN_PTX.search(before)) == ALL[name].tiling.reads_table
    assert not reads_of(before.splitlines(), r"\w+")


@pytest.mark.parametrize("name", LINEAR_TABLES | CONV_TABLES)
def test_inputs_are_not_read_as_data_that_never_changes(name: str) -> None:
    reads = reads_of(ptx_of(name).splitlines(), r"\w+_param_0")
    assert reads
    assert not [line for line in reads if "ld.global.nc" in line]


@pytest.mark.parametrize("name", ALL)
def test_ptxas_moves_no_read_of_memory_to_before_the_wait(name: str) -> None:
    """ptxas may move `ld.global.nc`, whose data never changes while a kernel runs, before `griddepcontrol.wait`."""
    ptx = ptx_of(name)
    before = READ_IN_PTX.findall(ptx.partition("griddepcontrol.wait;")[0])
    opcodes = OPCODE.get(CubinFile.read(shared_cubin(ptx.encode(), ARCH, find_toolchain())).words)
    [wait] = np.flatnonzero(opcodes == ACQBULK)
    kinds = opcodes & KIND_MASK
    reads = np.flatnonzero(np.isin(kinds, READS_OF_MEMORY))
    # Tables are copied by LDGSTS too, in a loop that ptxas may unroll.
    moved = np.flatnonzero(np.isin(kinds, READS_TO_REGISTERS)) if ALL[name].tiling.reads_table else reads
    assert np.count_nonzero(moved < wait) <= len([read for read in before if "cp.async" not in read])
    assert (reads > wait).any()


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_made_without_ptxas_computes_bit_for_bit_what_the_ptx_does(name: str) -> None:
    case = waiting(CASES[name])
    weights = weights_of(case, 0.3)
    np.testing.assert_array_equal(computed(case, weights, directly(case, weights)), expected(case, weights))


@pytest.mark.parametrize("name", LINEAR_TABLES)
def test_a_kernel_with_a_table_that_waits_computes_bit_for_bit_what_it_does_without(name: str) -> None:
    case = LINEAR_TABLES[name]
    weights = weights_of(case, 0.3)
    np.testing.assert_array_equal(expected(waiting(case), weights), expected(case, weights))


@pytest.mark.parametrize("name", CASES | LINEAR_TABLES)
def test_dependents_are_launched_when_only_sums_are_left_to_store(name: str) -> None:
    lines = ptx_of(name).splitlines()
    launched = [i for i, line in enumerate(lines) if "griddepcontrol.launch_dependents" in line]
    products = [i for i, line in enumerate(lines) if re.search(r"fma\.rn\.(f32|f16x2)", line)]
    stores = [i for i, line in enumerate(lines) if "st.global" in line]
    assert min(products) < launched[0] < min(stores)


@pytest.mark.parametrize("name", CASES | LINEAR_TABLES)
def test_other_kernels_neither_wait_nor_launch_dependents(name: str) -> None:
    case = ALL[name]
    assert "griddepcontrol" not in rewrite(template_of(case), weights_of(case, 0.3)).ptx.decode()
    assert not launch_of(case.spec, case.tiling).waits
    assert launch_of(case.spec, waiting(case).tiling).waits
    assert needs_clusters(waiting(case).tiling)


def test_kernels_that_cannot_wait_are_refused() -> None:
    plain = Conv2d(16, 8, 12, 10, 1, 1)
    for tiling in (Tiling("direct_global", 32, 1, 1, 5, 8, 0), Tiling("conv2d", 32, 1, 1, 5, 8, 2, form="full")):
        launch_of(plain, tiling)
        with pytest.raises(TilingError, match="it cannot wait for the kernel ahead"):
            launch_of(plain, replace(tiling, waits=True))
