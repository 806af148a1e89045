"""Architectures that no GPU here has: direct code computes what its PTX does, and the checker agrees with ptxas."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest

from codegen.ptx.template import Template
from codegen.sass.assemble import assembler
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.architectures import ARCHITECTURES, architecture_named
from codegen.sass.isa.encoding import ALWAYS, OPCODE, STALL
from codegen.sass.isa.opcodes import FFMA_IMMEDIATE, HFMA2_IMMEDIATE, HFMA2_MMA_IMMEDIATE
from codegen.sass.qualification import SUPPORTED_ARCHS
from codegen.sass.skeleton.marker_ptx import PAIRED_DEMAND, MarkerPtx
from codegen.sass.skeleton.reader import Skeleton
from codegen.sass.verify import hazards
from codegen.sass.verify.program import Program
from codegen.toolchain.tools import find_toolchain
from tests.toolchain.latency_chains import latency_chain
from tests.toolchain.machine_case import computed, expected, template_of, weights_of, whole_layer
from tests.toolchain.machine_cubins import HALVES, PLAIN, cubin_for
from tests.toolchain.operator_cases import CASES
from tests.toolchain.test_nvdisasm import check_registers
from tests.toolchain.test_sass_faults import check_faults
from tests.toolchain.test_sass_hazards import is_refused_one_cycle_sooner, nearest_in_chain

PACKED = "float16, several rows a thread, added up in float16"

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_100", "sm_120")
ALIKE = ("sm_103", "sm_110", "sm_121")
"""Architectures that differ from sm_100 or sm_120 in one instruction at most."""
CAPABILITY_BYTE = 49
"""Place of the architecture's number in an ELF file."""
OFTEN, DRAWN = 15, 20
"""Occurrences after which a pair in a chain counts as seen at its least distance, and number of such pairs tried."""
CARRY = "IMAD.WIDE 81+0"
"""The carry of IMAD.WIDE, which ptxas leaves 4 cycles in some forms, 6 in others; NVIDIA publishes 4."""
KINDS = (
    PLAIN,
    "float16, added up in float32",
    "float16, several rows a thread, added up in float16",
    "a residual and a Relu",
    "bfloat16 copied by fours, whole rows",
    "pool, an odd map, no kernels left over",
    "several images a block, a 1x1 kernel",
    "neighbouring columns, long sums",  # a constant in bank 2 that could be an address in the code
)


@cache
def skeleton(template: Template, arch: str) -> bytes:
    return make_skeleton(template, arch, find_toolchain()).data


def directly(name: str, arch: str) -> CubinFile:
    case = CASES[name]
    template, weights = template_of(case, arch), weights_of(case, 0.5)
    made = DirectAssembler.of(template, skeleton(template, arch), arch).assemble(weights, whole_layer(case))
    return CubinFile.read(made.data)


def test_an_architecture_that_writes_code_alike_gets_the_code_of_another() -> None:
    case, weights = CASES[PLAIN], weights_of(CASES[PLAIN], 0.5)
    template, whole = template_of(case, "sm_86"), whole_layer(case)
    same_code = bytearray(skeleton(template, "sm_86"))
    same_code[CAPABILITY_BYTE] = 89
    known = DirectAssembler.of(template, skeleton(template, "sm_86"), "sm_86")
    sharing = DirectAssembler.of(template, bytes(same_code), "sm_89", [known])
    assert sharing.frame.body is known.frame.body
    alone = DirectAssembler.of(template, bytes(same_code), "sm_89")
    assert sharing.cubin(known.code(weights, whole), 0.0).data == alone.assemble(weights, whole).data
    same_code[CAPABILITY_BYTE] = 80
    for other, arch in ((bytes(same_code), "sm_80"), (skeleton(template, "sm_89"), "sm_89")):  # facts differ, or code
        own = DirectAssembler.of(template, other, arch, [known])
        assert own.frame.body is not known.frame.body


def test_every_architecture_whose_words_are_known_is_assembled() -> None:
    assert [each.name for each in ARCHITECTURES.values()] == list(SUPPORTED_ARCHS)


@pytest.mark.parametrize(("arch", "name"), [*product(ARCHS, KINDS), *product(ALIKE, KINDS[:2])])
def test_direct_code_computes_bit_for_bit_what_its_ptx_does(arch: str, name: str) -> None:
    case, weights = CASES[name], weights_of(CASES[name], 0.5)
    output = computed(case, weights, directly(name, arch))
    np.testing.assert_array_equal(output, expected(case, weights, arch=arch))


@pytest.mark.parametrize("name", [PLAIN, HALVES, "transposed", "linear, copied by fours"])
@pytest.mark.parametrize("arch", [each.name for each in ARCHITECTURES.values()])
def test_what_ptxas_makes_is_accepted(arch: str, name: str) -> None:
    hazards.check_cubin(CubinFile.read(cubin_for(name, arch)))


@pytest.mark.parametrize("arch", ARCHS + ALIKE)
def test_a_chain_of_all_pairs_by_ptxas_is_accepted_but_not_one_cycle_sooner(arch: str) -> None:
    chain = latency_chain(arch)
    assert hazards.check(chain.words, chain.registers, architecture_named(arch)) == []
    seen = [each for each in nearest_in_chain(chain, OFTEN) if each.kind[0] != CARRY]
    pairs = Random(arch).sample(seen, DRAWN)
    accepted = [each for each in pairs if not is_refused_one_cycle_sooner(each)]
    assert [(each.kind, each.cycles) for each in accepted] == []


@pytest.mark.parametrize("arch", ARCHS)
def test_the_larger_figure_of_an_architectures_two_sources_counts(arch: str) -> None:
    chain, known = latency_chain(arch), architecture_named(arch)
    latencies, published = known.latencies, known.published
    longer = (
        replace(known, latencies=replace(latencies, registers=latencies.registers + 1)),
        replace(known, published=replace(published, read=published.read + 9)),
    )
    assert published.source
    assert all(hazards.check(chain.words, chain.registers, each) for each in longer)


@pytest.mark.parametrize("name", [PLAIN, "float16, added up in float32"])
@pytest.mark.parametrize("arch", ARCHS)
def test_waits_and_cycles_taken_away_are_refused_unless_every_walk_does_without_them(arch: str, name: str) -> None:
    check_faults(directly(name, arch), Random(arch + name), 30)


@pytest.mark.parametrize("name", [PLAIN, "float16, added up in float32"])
@pytest.mark.parametrize("arch", ARCHS)
def test_direct_words_are_those_that_nvdisasm_finds_with_the_same_registers(
    arch: str, name: str, tmp_path: Path
) -> None:
    check_registers(directly(name, arch).data, tmp_path)


@pytest.mark.parametrize("arch", ARCHS)
def test_pointers_marked_in_pairs_give_the_same_outputs(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas moved pointers of sm_86 between two markers of four, in ResNet-18's last layers."""
    monkeypatch.setattr(assembler, "DEMANDS", (PAIRED_DEMAND,))
    case = CASES["whole maps of an odd size, in one piece"]
    template, weights = template_of(case, arch), weights_of(case, 0.5)
    made = make_skeleton(template, arch, find_toolchain()).data
    assert Skeleton.read(made, MarkerPtx.of(template, architecture_named(arch))).pointers.shape[1] == 9
    words = DirectAssembler.of(template, made, arch).assemble(weights, whole_layer(case)).data
    output = computed(case, weights, CubinFile.read(words))
    np.testing.assert_array_equal(output, expected(case, weights, arch=arch))


@pytest.mark.parametrize("arch", ["sm_86", "sm_87", "sm_89", "sm_100", "sm_120"])
def test_two_words_of_the_integer_pipe_are_two_cycles_apart_or_refused(arch: str) -> None:
    cubin = directly("whole rows", arch)
    words, known = cubin.words, architecture_named(arch)
    code = Program(words, np.zeros(0, dtype=np.int64), known)
    products = np.flatnonzero(code.used.named("IMAD", "IMAD.WIDE", "IMAD.HI"))
    next_to = products[:-1][(np.diff(products) == 1) & (np.diff(code.segment[products]) == 0)]
    assert len(next_to)
    assert code.stalls[next_to].min() == 2
    place = int(next_to[0])
    STALL.put(words[place : place + 1], 1)
    assert any("shares a pipe" in each.reason for each in hazards.check(words, cubin.registers, known))


@pytest.mark.parametrize(
    ("arch", "case", "opcode"),
    [
        ("sm_75", PLAIN, FFMA_IMMEDIATE),
        ("sm_80", PLAIN, FFMA_IMMEDIATE),
        ("sm_100", PACKED, HFMA2_IMMEDIATE),
        ("sm_120", PACKED, HFMA2_IMMEDIATE),
    ],
)
def test_multiply_adds_of_a_slow_pipe_are_two_cycles_apart_or_refused(arch: str, case: str, opcode: int) -> None:
    cubin = directly(case, arch)
    words = cubin.words
    adds = OPCODE.get(words) == opcode
    neighbours = np.flatnonzero(adds[1:] & adds[:-1])
    assert len(neighbours) > 10
    assert STALL.get(words)[neighbours].min() == 2
    place = int(neighbours[STALL.get(words)[neighbours] == 2][0])
    STALL.put(words[place : place + 1], 1)
    found = hazards.check(words, cubin.registers, architecture_named(arch))
    assert any(f"shares a pipe with word {place}" in each.reason for each in found)


def test_a_load_of_sm_75_overwrites_a_result_after_six_cycles_or_is_refused() -> None:
    """Zeroes for inputs beside the map, which loads with a predicate replace."""
    cubin = directly("whole rows", "sm_75")
    words, known = cubin.words, architecture_named("sm_75")
    code = Program(words, np.zeros(0, dtype=np.int64), known)
    loads = code.used.writes.where((code.used.named("LDG") & (code.guard != ALWAYS))[code.used.writes.word])
    writer = code.used.writes.before(loads.resource, loads.word)
    near = np.flatnonzero(code.cycles[loads.word] - code.cycles[writer] == 6)
    assert len(near)
    place = int(loads.word[near[0]]) - 1
    STALL.put(words[place : place + 1], STALL.get(words)[place] - 1)
    assert any("5 cycles after" in each.reason for each in hazards.check(words, cubin.registers, known))


@pytest.mark.parametrize("arch", ARCHS)
def test_packed_multiply_adds_go_to_the_tensor_cores_only_where_these_have_them(arch: str) -> None:
    words = directly("float16, several rows a thread, added up in float16", arch).words
    assert (OPCODE.get(words) == HFMA2_MMA_IMMEDIATE).any() == (arch in ("sm_80", "sm_87"))
