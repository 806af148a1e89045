"""The hazard checker: accepted machine code cannot read a register before its value is there.

It checks, along the code and along every branch:

- A result of unknown latency (loads, special registers) is waited for before its register is used.
- Operands are not overwritten before they have been read.
- A result of fixed latency is as far from its use as ptxas puts it, and as NVIDIA publishes (`needs.py`).
- Each wait is for a scoreboard that something sets.
- Registers stay below the cubin's count, and branches go to words of the code.

What the code computes is checked by the emulator. An unknown instruction is refused, and in a cubin an unknown bit of
a known one too: a modifier may change what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError, UnsupportedCodeError
from codegen.sass.cubin import CubinFile
from codegen.sass.isa import latencies
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.architectures import architecture_of
from codegen.sass.isa.encoding import ALWAYS, NO_SCOREBOARD, OPCODE, REUSE, SOURCE_A, WORD_BYTES, ZERO_REGISTER, Words
from codegen.sass.isa.opcodes import PREDICATES
from codegen.sass.verify.branch_hazards import check_branches
from codegen.sass.verify.cluster_barriers import check_cluster_barriers
from codegen.sass.verify.needs import needed, reloads
from codegen.sass.verify.program import Finding, Places, Program, next_of, resource_name

_SHOWN = 3
"""Findings in the message of an error."""


def check_cubin(cubin: CubinFile) -> None:
    """Raises MachineCodeError with the first findings, if there are any, or for an unknown architecture.

    Raises UnsupportedCodeError, which is one too, for an unknown opcode or bit: such code is not known to be wrong.
    """
    words, architecture = cubin.words, architecture_of(cubin.capability)
    if unknown := [*unknown_bits(words, architecture)]:
        raise UnsupportedCodeError(f"the code of {cubin.kernel} cannot be checked: {_listed(unknown)}")
    if found := check(words, cubin.registers, architecture, cubin.jump_tables // WORD_BYTES):
        raise MachineCodeError(f"the code of {cubin.kernel} is refused: {_listed(found)}")


def _listed(findings: Sequence[Finding]) -> str:
    shown = "; ".join(f"word {each.word}: {each.reason}" for each in findings[:_SHOWN])
    return shown + (f" and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else "")


def check(
    words: Words, registers: int, architecture: Architecture, jump_targets: Places | None = None
) -> list[Finding]:
    """Every hazard in a kernel's words [instructions, 2], sorted by word.

    `registers` is the cubin's count for a thread, `jump_targets` are the words that BRX may go to. Raises
    UnsupportedCodeError for an unknown opcode.
    """
    code = Program(words, np.zeros(0, np.int64) if jump_targets is None else jump_targets, architecture)
    found = [*_bounds(code, registers), *_waits(code), *_register_hazards(code), *_overwritten_operands(code)]
    found += [
        *_reloaded_operands(code),
        *_crowded_pipes(code),
        *check_branches(code),
        *_stale_reuse(code),
        *check_cluster_barriers(code),
    ]
    return sorted(set(found), key=lambda each: (each.word, each.reason))


def unknown_bits(words: Words, architecture: Architecture) -> Iterator[Finding]:
    """Words [instructions, 2] with a bit that the emulator does not know; an instruction that it lacks has any bits."""
    opcodes = OPCODE.get(words)
    order, counts = np.argsort(opcodes.astype(np.uint16), kind="stable"), np.bincount(opcodes)
    present = np.flatnonzero(counts)
    for number, places in zip(present.tolist(), np.split(order, np.cumsum(counts[present])), strict=False):
        opcode = architecture.opcode(number)
        if opcode is None or opcode.understood is None:
            continue
        mask = opcode.understood_mask(opcode.form_in(number))
        low, high = (words[places, half] & ~_halves(mask)[half] for half in (0, 1))
        known = np.logical_or.reduce([(low == fixed[0]) & (high == fixed[1]) for fixed in map(_halves, opcode.fixed)])
        for place in np.flatnonzero(~known).tolist():
            bits = int(low[place]) | int(high[place]) << 64
            yield Finding(int(places[place]), f"{opcode.name} with unknown bits {bits:#034x}")


def _halves(number: int) -> NDArray[np.uint64]:
    """Both halves of a word that is a number of 128 bits."""
    return np.array([number & (1 << 64) - 1, number >> 64], dtype=np.uint64)


def _bounds(code: Program, registers: int) -> Iterator[Finding]:
    """Registers beyond the count, branches out of the code or too soon, and code that runs off its end."""
    for accesses in (code.used.reads, code.used.writes):
        limit = registers - latencies.SPARE_REGISTERS
        for i in np.flatnonzero((accesses.resource < PREDICATES) & (accesses.resource >= limit)):
            name = resource_name(int(accesses.resource[i]))
            yield Finding(int(accesses.word[i]), f"{name} of {registers} registers, {latencies.SPARE_REGISTERS} spare")
    for b, distance in zip(*(each.tolist() for each in code.distances), strict=True):
        if distance % WORD_BYTES or not 0 <= b + 1 + distance // WORD_BYTES < len(code):
            yield Finding(b, f"branches over {distance} bytes, to no word of the code")
    branches, targets = code.branches.T
    hasty = (code.stalls[branches] < latencies.BRANCH_CYCLES) & (branches != targets)
    for b in np.unique(branches[hasty]).tolist():
        yield Finding(b, f"branches after {code.stalls[b]} cycles, not {latencies.BRANCH_CYCLES}")
    for target in code.jump_targets.tolist():
        if not 0 <= target < len(code):
            yield Finding(0, f"a jump table names word {target} of {len(code)}")
    ends = np.flatnonzero(code.ends)
    padding = code.used.named("NOP")
    if not len(ends) or not padding[ends[-1] + 1 :].all():
        yield Finding(len(code) - 1, "the code runs off its end")


def _waits(code: Program) -> Iterator[Finding]:
    """Waits for a scoreboard that nothing sets, or that was set so recently that the wait misses it."""
    for boards in (code.write_scoreboard, code.read_scoreboard):
        setters = np.flatnonzero(boards != NO_SCOREBOARD)
        waiting = code.first_wait(setters, boards[setters])
        near = waiting < len(code)
        near[near] &= ~code.used.named("DEPBAR")[waiting[near]]
        near[near] = code.cycles[waiting[near]] - code.cycles[setters[near]] < latencies.SETTLING_CYCLES
        for setter, place in zip(setters[near].tolist(), waiting[near].tolist(), strict=True):
            yield Finding(place, f"waits for scoreboard {boards[setter]} too soon after word {setter} sets it")
    for place in np.flatnonzero(code.used.named("LDGDEPBAR") & (code.write_scoreboard == NO_SCOREBOARD)).tolist():
        yield Finding(place, "ends a group of copies without setting a scoreboard")
    for scoreboard, places in enumerate(code.waits):
        if not len(places):
            continue
        sets = (code.write_scoreboard == scoreboard) | (code.read_scoreboard == scoreboard)
        reached = _reached_from(code, np.flatnonzero(sets))
        for place in places[places < reached[code.segment[places]]].tolist():
            yield Finding(place, f"waits for scoreboard {scoreboard}, which nothing sets before")


def _reached_from(code: Program, sources: Places) -> Places:
    """[segments]: the first word that may run after one of `sources`; all words after it may too."""
    first = np.full(int(code.segment[-1]) + 1, len(code))
    places = sources[~code.ends[sources] & (sources + 1 < len(code))] + 1
    branches, targets = code.branches.T
    while len(places):
        np.minimum.at(first, code.segment[places], places)
        taken = branches >= first[code.segment[branches]]
        places = targets[taken & (targets < first[code.segment[targets]])]
    return first


def _register_hazards(code: Program) -> Iterator[Finding]:
    """Reads and writes of a register before the word that wrote it last has delivered its result."""
    for accesses, writing in ((code.used.reads, False), (code.used.writes, True)):
        places, resources = accesses.word, accesses.resource
        before = places
        while len(places):
            writer = code.used.writes.before(resources, before)
            recent = code.cycles[places] - code.cycles[writer] < code.architecture.latencies.longest
            doubtful = _in_segment(code, writer, places, np.flatnonzero(recent | (code.done[writer] > places)))
            yield from _too_early(code, writer[doubtful], places[doubtful], resources[doubtful], writing=writing)
            # A guarded writer may not have run, so an earlier one counts too, unless its result is certainly there.
            again = _in_segment(code, writer, places, np.flatnonzero((code.guard != ALWAYS)[writer]))
            places, resources, before = places[again], resources[again], writer[again]
            recent = code.cycles[places] - code.cycles[before] < code.architecture.latencies.longest
            again = np.flatnonzero(recent | code.unfinished(resources, before, places))
            places, resources, before = places[again], resources[again], before[again]


def _in_segment(code: Program, writer: Places, places: Places, chosen: Places) -> Places:
    """The `chosen` indices whose writer exists, in the segment of its place."""
    there = (writer[chosen] >= 0) & (code.segment[writer[chosen]] == code.segment[places[chosen]])
    found: Places = chosen[there]
    return found


def _too_early(code: Program, writer: Places, places: Places, resources: Places, *, writing: bool) -> Iterator[Finding]:
    """Accesses at `places` to results of the words `writer`, if only guarded words write them in between."""
    if not len(places):
        return
    passed = code.cycles[places] - code.cycles[writer]
    unknown = code.asynchronous[writer]
    late, near = unknown & (code.done[writer] > places), ~unknown & (passed < code.architecture.latencies.longest)
    if writing:
        late &= ~((code.queues[writer] > 0) & (code.queues[writer] == code.queues[places]))
    least = needed(code, writer, places, resources, writing=writing)
    wrong = np.flatnonzero(late | near & (passed < least))
    wrong = wrong[~code.opposite(writer[wrong], places[wrong])]
    verb = "overwrites" if writing else "reads"
    for i in wrong.tolist():
        name = resource_name(int(resources[i]))
        if late[i]:
            yield Finding(int(places[i]), f"{verb} {name} before word {writer[i]} is waited for")
        else:
            cycles = f"{passed[i]} cycles after word {writer[i]}, not {least[i]}"
            yield Finding(int(places[i]), f"{verb} {name} {cycles}")


def _overwritten_operands(code: Program) -> Iterator[Finding]:
    """Writes of a register that a load or store before them may still read. Predicates are read at issue."""
    reads = code.used.reads
    late = code.asynchronous[reads.word] & (reads.resource < PREDICATES)
    readers, resources = reads.word[late], reads.resource[late]
    writer = code.used.writes.following(resources, readers + 1)
    there = writer < len(code)
    there[there] = code.segment[writer[there]] == code.segment[readers[there]]
    wrong = there.copy()
    wrong[there] = (code.released[readers[there]] > writer[there]) & ~code.asynchronous[writer[there]]
    for i in np.flatnonzero(wrong):
        name = resource_name(int(resources[i]))
        yield Finding(int(writer[i]), f"overwrites {name} before word {readers[i]} has read it")


def _reloaded_operands(code: Program) -> Iterator[Finding]:
    """Loads into a register that a word of fixed latency right before them still reads. A branch takes longer."""
    readers, places, resources, least = reloads(code)
    passed = code.cycles[places] - code.cycles[readers]
    for i in np.flatnonzero((passed < least) & (code.segment[readers] == code.segment[places])).tolist():
        name = resource_name(int(resources[i]))
        yield Finding(int(places[i]), f"overwrites {name} {passed[i]} cycles after word {readers[i]}, not {least[i]}")


def _crowded_pipes(code: Program) -> Iterator[Finding]:
    """Words that come sooner after another one of their pipe than ptxas ever puts them."""
    for busy, waiting, least in code.architecture.intervals:
        first, then = next_of(*(np.flatnonzero(code.used.named(*names)) for names in (busy, waiting)))
        passed = code.cycles[then] - code.cycles[first]
        near = (passed < least) & (code.segment[then] == code.segment[first])
        for before, place, cycles in zip(*(each[near].tolist() for each in (first, then, passed)), strict=True):
            yield Finding(place, f"shares a pipe with word {before}, and comes {cycles} cycles after it, not {least}")


def _stale_reuse(code: Program) -> Iterator[Finding]:
    """Packed float16 multiply-adds that keep an input whose register changes before their unit reads it again.

    An input is kept until the unit reads a register of the same bank. Odd registers are one bank, even ones the other.
    """
    kept = REUSE.get(code.words) & 1 == 1
    register = SOURCE_A.get(code.words)
    for name, bank in product(("HFMA2", "HFMA2.MMA"), (0, 1)):
        reads = code.used.named(name) & (register != ZERO_REGISTER) & (register % 2 == bank)
        places = np.flatnonzero(reads)
        here, following = places[:-1], places[1:]
        same = kept[here] & (register[here] == register[following])
        here, following = here[same], following[same]
        writer = code.used.writes.before(register[following], following)
        for i in np.flatnonzero(writer >= here).tolist():
            input_name = resource_name(int(register[here[i]]))
            yield Finding(int(following[i]), f"reads {input_name} as word {here[i]} kept it, before it changed")
