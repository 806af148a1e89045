"""Architectures that no GPU here has: direct code computes what its PTX does, and the checker agrees with ptxas."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from codegen.ptx.template import Template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.architectures import architecture_named
from codegen.sass.isa.encoding import OPCODE, STALL
from codegen.sass.isa.opcodes import FFMA_IMMEDIATE, HFMA2_MMA_IMMEDIATE
from codegen.sass.verify import hazards
from codegen.toolchain.tools import find_toolchain
from tests.toolchain.latency_chains import latency_chain
from tests.toolchain.machine_case import computed, expected, template_of, weights_of, whole_layer
from tests.toolchain.machine_cubins import HALVES, PLAIN, cubin_for
from tests.toolchain.operator_cases import CASES

ARCHS = ("sm_80", "sm_86", "sm_89")
KINDS = (
    PLAIN,
    "float16, added up in float32",
    "float16, several rows a thread, added up in float16",
    "a residual and a Relu",
    "bfloat16 copied by fours, whole rows",
    "pool, an odd map, no kernels left over",
    "several images a block, a 1x1 kernel",
)


@cache
def skeleton(template: Template, arch: str) -> bytes:
    return make_skeleton(template, arch, find_toolchain()).data


def directly(name: str, arch: str) -> CubinFile:
    case = CASES[name]
    template, weights = template_of(case), weights_of(case, 0.5)
    made = DirectAssembler.of(template, skeleton(template, arch), arch).assemble(weights, whole_layer(case))
    return CubinFile.read(made.data)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("arch", ARCHS)
def test_direct_code_computes_bit_for_bit_what_its_ptx_does(arch: str, name: str) -> None:
    case, weights = CASES[name], weights_of(CASES[name], 0.5)
    np.testing.assert_array_equal(computed(case, weights, directly(name, arch)), expected(case, weights))


@pytest.mark.parametrize("name", [PLAIN, HALVES, "transposed", "linear, copied by fours"])
@pytest.mark.parametrize("arch", ARCHS)
def test_what_ptxas_makes_is_accepted(arch: str, name: str) -> None:
    hazards.check_cubin(CubinFile.read(cubin_for(name, arch)))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_chain_of_all_pairs_by_ptxas_is_accepted(arch: str) -> None:
    hazards.check_cubin(latency_chain(arch))


def test_multiply_adds_of_sm_80_are_two_cycles_apart_or_refused() -> None:
    cubin = directly(PLAIN, "sm_80")
    words = cubin.words
    adds = OPCODE.get(words) == FFMA_IMMEDIATE
    neighbours = np.flatnonzero(adds[1:] & adds[:-1])
    assert len(neighbours) > 10
    assert STALL.get(words)[neighbours].min() == 2
    place = int(neighbours[STALL.get(words)[neighbours] == 2][0])
    STALL.put(words[place : place + 1], 1)
    found = hazards.check(words, cubin.registers, architecture_named("sm_80"))
    assert any(f"shares a pipe with word {place}" in each.reason for each in found)


@pytest.mark.parametrize(("arch", "has_them"), [("sm_80", True), ("sm_86", False), ("sm_89", False)])
def test_packed_multiply_adds_go_to_the_tensor_cores_only_where_these_have_them(arch: str, has_them: bool) -> None:
    words = directly("float16, several rows a thread, added up in float16", arch).words
    assert (OPCODE.get(words) == HFMA2_MMA_IMMEDIATE).any() == has_them
