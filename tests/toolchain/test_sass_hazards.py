"""The hazard checker accepts what ptxas makes, and refuses it once it is damaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from codegen.errors import MachineCodeError
from codegen.sass.cubin import CubinFile
from codegen.sass.isa import published_latencies
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.architectures import ARCHITECTURES, architecture_of
from codegen.sass.isa.architectures.sm_90 import SM_90
from codegen.sass.isa.branches import branch_distances, put_branch_distances
from codegen.sass.isa.encoding import (
    ALWAYS,
    DESTINATION,
    NO_SCOREBOARD,
    OPCODE,
    PREDICATE,
    READ_SCOREBOARD,
    REGISTERS_OF_SIZE,
    REUSE,
    SCALE,
    SCOREBOARDS,
    SIZE,
    SOURCE_A,
    STALL,
    WAIT,
    WORD_BYTES,
    WRITE_SCOREBOARD,
    Field,
    Words,
)
from codegen.sass.isa.opcodes import (
    BRA,
    EXIT,
    FFMA_IMMEDIATE,
    FORM_SHIFT,
    HFMA2_IMMEDIATE,
    LAST,
    LDGSTS,
    LDS,
    PREDICATES,
    Slot,
)
from codegen.sass.isa.operands import operands, slots_read, slots_written
from codegen.sass.verify import hazards, needs
from codegen.sass.verify.program import Program
from tests.toolchain.latency_chains import latency_chain
from tests.toolchain.machine_cubins import HALVES, PLAIN, cubin_for
from tests.toolchain.test_nvdisasm import directly

KINDS = (
    PLAIN,
    HALVES,
    "several rows a thread, three stages",
    "patches of 8 x 8",
    "one output",
    "whole rows copied by fours",
    "whole rows, bfloat16",
    "several images a block, a 1x1 kernel",
    "depthwise",
    "transposed",
    "a 1x1 kernel without cp.async",
    "linear, copied by fours",
    "float16 linear, a hard sigmoid",
)


OFTEN, OFTEN_IN_CHAIN = 30, 6
"""A kind of dependence seen this often in the cubins of KINDS, or in a chain, is seen at its least distance."""


@pytest.fixture(scope="module")
def cubin() -> CubinFile:
    return CubinFile.read(cubin_for(PLAIN, "sm_90"))


def changed(cubin: CubinFile, field: Field, place: int, value: int) -> Words:
    words = cubin.words
    field.put(words[place : place + 1], value)
    return words


def is_refused(cubin: CubinFile, words: Words) -> bool:
    return bool(hazards.check(words, cubin.registers, SM_90))


@pytest.mark.parametrize("name", KINDS)
def test_what_ptxas_makes_is_accepted(name: str) -> None:
    hazards.check_cubin(CubinFile.read(cubin_for(name, "sm_90")))


def test_a_multiply_add_that_does_not_wait_for_its_load_is_refused(cubin: CubinFile) -> None:
    masks, opcodes = WAIT.get(cubin.words), OPCODE.get(cubin.words)
    waiting = np.flatnonzero((masks > 0) & (opcodes == FFMA_IMMEDIATE))
    assert len(waiting) > 10
    for place in waiting.tolist():
        for scoreboard in (each for each in range(SCOREBOARDS) if masks[place] >> each & 1):
            assert is_refused(cubin, changed(cubin, WAIT, place, masks[place] & ~(1 << scoreboard)))


def test_loads_that_set_no_scoreboard_are_refused(cubin: CubinFile) -> None:
    """All that set one, as ptxas leaves out some that the next load covers."""
    boards = np.where(OPCODE.get(cubin.words) == LDS, WRITE_SCOREBOARD.get(cubin.words), NO_SCOREBOARD)
    for scoreboard in set(boards.tolist()) - {NO_SCOREBOARD}:
        words = cubin.words
        WRITE_SCOREBOARD.put(words, np.where(boards == scoreboard, NO_SCOREBOARD, WRITE_SCOREBOARD.get(words)))
        assert is_refused(cubin, words)


def test_a_multiply_add_too_soon_after_the_one_that_it_adds_to_is_refused(cubin: CubinFile) -> None:
    """Pairs at a distance of exactly the latency: a cycle less anywhere between them is too little."""
    words = cubin.words
    stalls, opcodes = STALL.get(words), OPCODE.get(words)
    cycles = np.cumsum(stalls) - stalls
    tried = 0
    for place in np.flatnonzero(opcodes == FFMA_IMMEDIATE).tolist():
        before = [
            i for i in range(place - 4, place) if opcodes[i] == FFMA_IMMEDIATE and writes_addend_of(words, i, place)
        ]
        if before and cycles[place] - cycles[before[-1]] == 4:
            longest = before[-1] + int(np.argmax(stalls[before[-1] : place]))
            if stalls[longest] > 1:
                assert is_refused(cubin, changed(cubin, STALL, longest, stalls[longest] - 1))
                tried += 1
    assert tried > 3


def writes_addend_of(words: Words, first: int, second: int) -> bool:
    return bool(DESTINATION.get(words[first : first + 1])[0] == Field(64, 8).get(words[second : second + 1])[0])


def test_a_register_that_a_load_still_brings_is_not_used_for_another(cubin: CubinFile) -> None:
    """The multiplicand of a multiply-add swapped for the target of the next load."""
    words = cubin.words
    opcodes = OPCODE.get(words)
    pairs = np.flatnonzero((opcodes[:-1] == LDS) & (opcodes[1:] == FFMA_IMMEDIATE) & (PREDICATE.get(words)[:-1] == 7))
    assert len(pairs)
    for place in pairs.tolist():
        target = int(DESTINATION.get(words[place : place + 1])[0])
        assert is_refused(cubin, changed(cubin, SOURCE_A, place + 1, target))


@dataclass(frozen=True)
class Dependence:
    """A word that reads a result of a fixed latency, and the word that wrote it."""

    cubin: CubinFile
    kind: tuple[str, str]
    """Instruction and field of the result, and of the operand, as the encoding has them: no class of latencies."""
    writer: int
    reader: int
    cycles: int


def fields(slots: Iterable[Slot], word: Words, resource: int) -> str:
    """The fields of a word [1, 2] that name a resource, and its number within each."""
    found = []
    for slot in slots:
        counts = slot.only_if is None or slot.only_if.get(word)[0]
        number = 0 if slot.field is None else int(slot.field.get(word)[0])
        width = int(REGISTERS_OF_SIZE[SIZE.get(word)][0]) if slot.width < 0 else slot.width
        within = resource - slot.kind - slot.beyond - number
        if counts and number != LAST[slot.kind] and 0 <= within < width:
            found.append(f"{slot.field.first if slot.field else 'mask'}+{within}")
    return ", ".join(found)


def dependences(cubin: CubinFile) -> Iterator[Dependence]:
    """All of a cubin that are near."""
    words, architecture = cubin.words, architecture_of(cubin.capability)
    code, opcodes = Program(words, cubin.jump_tables // WORD_BYTES, architecture), OPCODE.get(words)
    reads = code.used.reads
    writer = code.used.writes.before(reads.resource, reads.word)
    near = (code.segment[writer] == code.segment[reads.word]) & ~code.asynchronous[writer]
    near &= (writer >= 0) & (code.cycles[reads.word] - code.cycles[writer] <= architecture.latencies.longest)
    for first, second, resource in zip(
        *(each[near].tolist() for each in (writer, reads.word, reads.resource)), strict=True
    ):
        if code.guard[first] != ALWAYS or code.opposite(np.array([first]), np.array([second]))[0]:
            continue
        written_by, read_by = (architecture.opcode(int(opcodes[place])) for place in (first, second))
        assert written_by is not None
        assert read_by is not None
        form = read_by.form_in(int(opcodes[second]))
        result = fields(slots_written(written_by), words[first : first + 1], resource)
        operand = fields(slots_read(read_by, form), words[second : second + 1], resource)
        kind = f"{written_by.name} {result}", f"{read_by.name} {operand} of form {form}"
        yield Dependence(cubin, kind, first, second, int(code.cycles[second] - code.cycles[first]))


def nearest(cubins: Iterable[CubinFile], often: int) -> list[Dependence]:
    """The nearest dependence of each kind that is seen often."""
    found: dict[tuple[str, str], list[Dependence]] = defaultdict(list)
    for each in (each for cubin in cubins for each in dependences(cubin)):
        found[each.kind].append(each)
    return [min(seen, key=lambda each: each.cycles) for seen in found.values() if len(seen) >= often]


def is_refused_one_cycle_sooner(dependence: Dependence) -> bool:
    stalls = STALL.get(dependence.cubin.words)[dependence.writer : dependence.reader]
    longest = dependence.writer + int(np.argmax(stalls))
    damaged = changed(dependence.cubin, STALL, longest, int(stalls.max()) - 1)
    reason = f"{dependence.cycles - 1} cycles after word {dependence.writer}, not {dependence.cycles}"
    cubin = dependence.cubin
    refused = hazards.check(damaged, cubin.registers, architecture_of(cubin.capability))
    return any(each.word == dependence.reader and reason in each.reason for each in refused)


def nearest_in_chain(chain: CubinFile, often: int = OFTEN_IN_CHAIN) -> list[Dependence]:
    """The nearest dependences of a chain whose readers have a fixed latency too."""
    code = Program(chain.words, np.zeros(0, dtype=np.int64), architecture_of(chain.capability))
    return [each for each in nearest([chain], often) if not code.asynchronous[each.reader]]


@pytest.fixture(scope="module")
def chain() -> CubinFile:
    return latency_chain("sm_90")


def test_a_chain_of_all_pairs_by_ptxas_is_accepted(chain: CubinFile) -> None:
    assert hazards.check(chain.words, chain.registers, SM_90) == []


def test_a_result_one_cycle_sooner_than_ptxas_ever_leaves_it_is_refused(chain: CubinFile) -> None:
    """4 cycles between SHF and IMAD, which ptxas keeps 5 apart, gave wrong results on an H200."""
    in_chain = nearest_in_chain(chain)
    elsewhere = nearest((CubinFile.read(cubin_for(name, "sm_90")) for name in KINDS), OFTEN)
    accepted = [each for each in in_chain + elsewhere if not is_refused_one_cycle_sooner(each)]
    assert [(each.kind, each.cycles) for each in accepted] == []
    assert len(in_chain) > 100
    assert len(elsewhere) > 20


@pytest.mark.parametrize("wrong", ["measured", "published"])
def test_the_upper_half_of_a_product_is_a_multiplicand_after_6_cycles_by_either_source(
    chain: CubinFile, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 cycles were enough for the checker when addends and multiplicands were one class. ptxas leaves 6."""
    monkeypatch.setattr(needs, wrong, lambda code, writer, *_, writing: np.ones_like(writer))
    products = ("IMAD.WIDE 16+1", "IMAD.WIDE 24+0 of form 1"), ("IMAD.WIDE 16+1", "IMAD.WIDE 32+0 of form 1")
    chosen = [each for each in nearest([chain], OFTEN_IN_CHAIN) if each.kind in products]
    assert [each.cycles for each in chosen] == [6, 6]
    assert all(is_refused_one_cycle_sooner(each) for each in chosen)


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=lambda each: each.name)
def test_every_result_of_a_fixed_latency_has_a_published_class(architecture: Architecture) -> None:
    fixed = [each for each in architecture.opcodes.values() if not each.asynchronous and (each.result or each.writes)]
    unknown = published_latencies.RESULTS.index("decoupled")
    assert [each.name for each in fixed if published_latencies.result_index(each) == unknown] == []


def test_a_register_is_not_loaded_in_the_cycle_after_a_multiply_add_reads_it() -> None:
    cubin = CubinFile.read(directly("strides, a rectangular kernel, uneven padding"))
    words = cubin.words
    opcodes, sources, targets = OPCODE.get(words), SOURCE_A.get(words), DESTINATION.get(words)
    loads = np.flatnonzero((opcodes[1:] == LDS) & (opcodes[:-1] == FFMA_IMMEDIATE) & (sources[:-1] == targets[1:]))
    assert len(loads)
    for place in loads.tolist():
        found = hazards.check(changed(cubin, STALL, place, 1), cubin.registers, SM_90)
        assert any(f"1 cycles after word {place}, not 2" in each.reason for each in found)


def test_a_branch_that_leaves_too_few_cycles_is_refused(cubin: CubinFile) -> None:
    taken = [
        branch
        for branch, target in Program(cubin.words, np.zeros(0, np.int64), SM_90).branches.tolist()
        if branch != target
    ]
    found = hazards.check(changed(cubin, STALL, taken[0], 4), cubin.registers, SM_90)
    assert any("branches after 4 cycles, not 5" in each.reason for each in found)


@pytest.mark.parametrize(("guard", "accepted"), [(ALWAYS, True), (0, False)])
def test_a_special_register_is_there_when_a_later_one_that_no_predicate_guards_is(
    cubin: CubinFile, guard: int, accepted: bool
) -> None:
    words = np.repeat(cubin.words[-1:], 12, axis=0)
    words[0] = 0x00000000000779C3, 0x000FF00000002600  # S2UR UR7
    words[1] = 0x00000000000679C3, 0x000F300000008800  # S2UR UR6
    words[2] = 0x0000000406067291, 0x010FE2000F8EC03F  # ULEA UR6, which waits for it
    words[3] = 0x00000007040C7C25, 0x000FC8000F8E020C  # IMAD.WIDE of UR7
    words[11] = cubin.words[np.flatnonzero(OPCODE.get(cubin.words) == EXIT)[-1]]
    WAIT.put(words[3:], 0)
    STALL.put(words, 15)
    WRITE_SCOREBOARD.put(words[:1], 5)
    PREDICATE.put(words[1:2], guard)
    missing = ["reads UR7 before word 0 is waited for"]
    assert [each.reason for each in hazards.check(words, 255, SM_90)] == ([] if accepted else missing)


def test_a_register_beyond_the_count_is_refused(cubin: CubinFile) -> None:
    used = operands(cubin.words, SM_90)
    highest = int(used.writes.resource[used.writes.resource < PREDICATES].max())
    assert highest + 3 == cubin.registers
    assert hazards.check(cubin.words, cubin.registers - 1, SM_90)


def test_an_address_overwritten_before_the_copies_that_read_it_have_read_it_is_refused(cubin: CubinFile) -> None:
    words = cubin.words
    assert (READ_SCOREBOARD.get(words) != NO_SCOREBOARD).any()
    READ_SCOREBOARD.put(words, NO_SCOREBOARD)
    assert any("has read it" in each.reason for each in hazards.check(words, cubin.registers, SM_90))


def test_a_branch_that_goes_nowhere_is_refused(cubin: CubinFile) -> None:
    words = cubin.words
    (*_, branch) = np.flatnonzero(OPCODE.get(words) == BRA).tolist()
    for distance in (8, 16 * len(words), -16 * len(words)):
        wrong = words.copy()
        put_branch_distances(wrong[branch : branch + 1], distance, 2)
        assert is_refused(cubin, wrong)


def test_a_branch_past_a_wait_is_refused(cubin: CubinFile) -> None:
    """The branch on the K group, moved into the stream: what it jumps over is what its target relies on."""
    words = cubin.words
    opcodes, masks = OPCODE.get(words), WAIT.get(words)
    branch = int(np.flatnonzero((opcodes == BRA) & (PREDICATE.get(words) != 7))[0])
    assert branch_distances(words, 2)[branch] > 0
    adds = np.flatnonzero(opcodes == FFMA_IMMEDIATE)
    within = int(adds[np.flatnonzero(masks[adds] == 0)[5]])
    wrong = words.copy()
    put_branch_distances(wrong[branch : branch + 1], (within - branch - 1) * 16, 2)
    assert is_refused(cubin, wrong)


def test_code_that_runs_off_its_end_is_refused(cubin: CubinFile) -> None:
    words = cubin.words
    last = int(np.flatnonzero(OPCODE.get(words) == EXIT)[-1])
    assert any("its end" in each.reason for each in hazards.check(words[:last], cubin.registers, SM_90))


def test_a_wait_for_what_nobody_sets_is_refused(cubin: CubinFile) -> None:
    assert is_refused(cubin, changed(cubin, WAIT, 0, 1))


def test_what_is_not_known_is_refused_and_named(cubin: CubinFile) -> None:
    with pytest.raises(MachineCodeError, match="opcode 0xabc"):
        hazards.check(changed(cubin, OPCODE, 5, 0xABC), cubin.registers, SM_90)
    copy = int(np.flatnonzero(OPCODE.get(cubin.words) == LDGSTS)[0])
    with pytest.raises(MachineCodeError, match=f"word {copy} has the unknown opcode 0xdae"):
        hazards.check(changed(cubin, OPCODE, copy, LDGSTS & 0x1FF | 6 << FORM_SHIFT), cubin.registers, SM_90)
    with pytest.raises(MachineCodeError, match="sm_88"):
        hazards.check_cubin(CubinFile.read(cubin_for(PLAIN, "sm_88")))


def test_a_bit_that_the_emulator_does_not_know_is_refused_in_every_word_of_a_cubin(cubin: CubinFile) -> None:
    """[R2.X4] was accepted, and read another address than the marker's [R2]."""
    words = cubin.words
    loads = np.flatnonzero(OPCODE.get(words) == LDS)
    SCALE.put(words[loads[5] : loads[5] + 1], 1)
    assert hazards.check(words, cubin.registers, SM_90) == []
    with pytest.raises(MachineCodeError, match=rf"word {loads[5]}: LDS with unknown bits 0x0*4000"):
        hazards.check_cubin(CubinFile.read(cubin.with_words(words)))
    for place in np.unique(OPCODE.get(words), return_index=True)[1].tolist():
        assert list(hazards.unknown_bits(changed(cubin, Field(104, 1), place, 1), SM_90))


def test_an_input_kept_from_before_its_register_was_loaded_again_is_refused() -> None:
    cubin = CubinFile.read(cubin_for(HALVES, "sm_90"))
    opcodes = OPCODE.get(cubin.words)
    products = np.flatnonzero(opcodes == HFMA2_IMMEDIATE)
    load = next(each for each in np.flatnonzero(opcodes == LDS).tolist() if products[0] < each < products[-1])
    words = cubin.words
    before, after = products[products < load][-1], products[products > load][0]
    for place in (before, after):
        SOURCE_A.put(words[place : place + 1], DESTINATION.get(words[load : load + 1]))
    assert not any("kept" in each.reason for each in hazards.check(words, cubin.registers, SM_90))
    REUSE.put(words[before : before + 1], 1)
    assert any(f"as word {before} kept it" in each.reason for each in hazards.check(words, cubin.registers, SM_90))


def test_no_words_use_no_registers() -> None:
    used = operands(np.zeros((0, 2), dtype=np.uint64), SM_90)
    assert len(used.reads.word) == len(used.writes.word) == len(used.opcodes) == 0
