"""A static verifier of machine code for sm_90: what it accepts cannot read a register before its value is there.

It checks that every result of an unknown latency (loads, special registers) is waited for before anything uses its
register, that operands of a load or store are not overwritten before they were read, that results of a fixed latency
are at least as far from their use as ptxas puts them (`latencies.py`), that each wait is for a scoreboard which
something sets, that registers stay below the cubin's count, and that branches go to a word of the code. It follows
the code in order, and every branch to where it goes.

It does not know what the code computes: that is the emulator's to check. Whatever it does not know, it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from codegen.errors import MachineCodeError
from codegen.sass.cubin import CubinFile
from codegen.sass.isa import latencies
from codegen.sass.isa.encoding import ALWAYS, NO_SCOREBOARD, REUSE, SOURCE_A, WORD_BYTES, ZERO_REGISTER, Words
from codegen.sass.isa.opcodes import PREDICATES
from codegen.sass.verify.branch_hazards import pending_on_branches
from codegen.sass.verify.cluster_barriers import barrier_findings
from codegen.sass.verify.program import ARCHITECTURE, Finding, Places, Program, resource_name

_SHOWN = 3


def prove(cubin: CubinFile) -> None:
    """Raises MachineCodeError, with the first findings, unless all that is checked here holds for the cubin."""
    if cubin.capability != ARCHITECTURE:
        raise MachineCodeError(f"machine code for sm_{cubin.capability}: the rules known here are sm_{ARCHITECTURE}'s")
    found = findings(cubin.words, cubin.registers, cubin.jump_tables // WORD_BYTES)
    if found:
        shown = "; ".join(f"word {each.word}: {each.reason}" for each in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise MachineCodeError(f"the code of {cubin.kernel} is refused: {shown}{more}")


def findings(words: Words, registers: int, jump_targets: Places | None = None) -> list[Finding]:
    """All that is wrong with a kernel's words [instructions, 2], in their order; `jump_targets` are those of BRX.

    Raises MachineCodeError for an opcode that is not known.
    """
    code = Program(words, np.zeros(0, np.int64) if jump_targets is None else jump_targets)
    found = [*_bounds(code, registers), *_waits(code), *_in_order(code), *_overwritten_operands(code)]
    found += [*pending_on_branches(code), *_kept_operands(code), *barrier_findings(code)]
    return sorted(set(found), key=lambda each: (each.word, each.reason))


def _bounds(code: Program, registers: int) -> Iterator[Finding]:
    """Registers, branch targets, and that the code does not run off its end."""
    for accesses in (code.used.reads, code.used.writes):
        limit = registers - latencies.SPARE_REGISTERS
        for i in np.flatnonzero((accesses.resource < PREDICATES) & (accesses.resource >= limit)):
            name = resource_name(int(accesses.resource[i]))
            yield Finding(int(accesses.word[i]), f"{name} of {registers} registers, {latencies.SPARE_REGISTERS} spare")
    for b in np.flatnonzero(code.used.named("BRA")):
        distance = int(code.distances[b])
        if distance % WORD_BYTES or not 0 <= b + 1 + distance // WORD_BYTES < len(code):
            yield Finding(int(b), f"a branch over {distance} bytes, to no word of the code")
    for target in code.jump_targets.tolist():
        if not 0 <= target < len(code):
            yield Finding(0, f"a jump table with word {target} of {len(code)}")
    ends = np.flatnonzero(code.ends)
    padding = code.used.named("NOP")
    if not len(ends) or not padding[ends[-1] + 1 :].all():
        yield Finding(len(code) - 1, "the code runs on behind its end")


def _waits(code: Program) -> Iterator[Finding]:
    """Every wait is for a scoreboard that something set, long enough ago that the wait sees it."""
    for boards in (code.write_scoreboard, code.read_scoreboard):
        setters = np.flatnonzero(boards != NO_SCOREBOARD)
        waiting = code.first_wait(setters, boards[setters])
        near = waiting < len(code)
        near[near] &= ~code.used.named("DEPBAR")[waiting[near]]
        near[near] = code.cycles[waiting[near]] - code.cycles[setters[near]] < latencies.SETTLING_CYCLES
        for setter, place in zip(setters[near].tolist(), waiting[near].tolist(), strict=True):
            yield Finding(place, f"waits for scoreboard {boards[setter]} too soon after word {setter} sets it")
    for place in np.flatnonzero(code.used.named("LDGDEPBAR") & (code.write_scoreboard == NO_SCOREBOARD)).tolist():
        yield Finding(place, "ends a group of copies without a scoreboard to wait for it by")
    for scoreboard, places in enumerate(code.waits):
        if not len(places):
            continue
        sets = (code.write_scoreboard == scoreboard) | (code.read_scoreboard == scoreboard)
        reached = _reached_from(code, np.flatnonzero(sets))
        for place in places[places < reached[code.segment[places]]].tolist():
            yield Finding(place, f"waits for scoreboard {scoreboard}, which nothing sets before")


def _reached_from(code: Program, sources: Places) -> Places:
    """Per segment the first word that may run after one of these did: all behind it may."""
    first = np.full(int(code.segment[-1]) + 1, len(code))
    places = sources[~code.ends[sources] & (sources + 1 < len(code))] + 1
    branches, targets = code.branches.T
    while len(places):
        np.minimum.at(first, code.segment[places], places)
        taken = branches >= first[code.segment[branches]]
        places = targets[taken & (targets < first[code.segment[targets]])]
    return first


def _in_order(code: Program) -> Iterator[Finding]:
    """Every register that a word reads or writes has the value that the last word before it gave it."""
    for accesses, writing in ((code.used.reads, False), (code.used.writes, True)):
        places, resources = accesses.word, accesses.resource
        before = places
        while len(places):
            writer = code.used.writes.before(resources, before)
            there = writer >= 0
            there[there] = code.segment[writer[there]] == code.segment[places[there]]
            places, resources, writer = places[there], resources[there], writer[there]
            yield from _against(code, writer, places, resources, writing=writing)
            # One that a predicate guards may not have run: what came before it counts too, unless that is long ago.
            again = np.flatnonzero(code.guard[writer] != ALWAYS)
            places, resources, before = places[again], resources[again], writer[again]
            recent = code.cycles[places] - code.cycles[before] < latencies.LONGEST
            again = np.flatnonzero(recent | code.unfinished(resources, before, places))
            places, resources, before = places[again], resources[again], before[again]


def _against(code: Program, writer: Places, places: Places, resources: Places, *, writing: bool) -> Iterator[Finding]:
    """Accesses at `places` to what the words `writer` write, with nothing but guarded words in between."""
    passed = code.cycles[places] - code.cycles[writer]
    doubtful = np.flatnonzero((passed < latencies.LONGEST) | (code.done[writer] > places))
    writer, places, resources, passed = writer[doubtful], places[doubtful], resources[doubtful], passed[doubtful]
    variable = code.asynchronous[writer]
    late, near = variable & (code.done[writer] > places), ~variable & (passed < latencies.LONGEST)
    if writing:
        late &= ~((code.queues[writer] > 0) & (code.queues[writer] == code.queues[places]))
    needed = code.needed(writer, places, resources, writing=writing)
    wrong = np.flatnonzero(late | near & (passed < needed))
    wrong = wrong[~code.opposite(writer[wrong], places[wrong])]
    verb = "overwrites" if writing else "reads"
    for i in wrong.tolist():
        name = resource_name(int(resources[i]))
        if late[i]:
            yield Finding(int(places[i]), f"{verb} {name} before word {writer[i]} is waited for")
        else:
            cycles = f"{passed[i]} cycles after word {writer[i]}, not {needed[i]}"
            yield Finding(int(places[i]), f"{verb} {name} {cycles}")


def _overwritten_operands(code: Program) -> Iterator[Finding]:
    """No register is written before the loads and stores that read it have read it; predicates are read at issue."""
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


def _kept_operands(code: Program) -> Iterator[Finding]:
    """What a multiply-add of halves keeps of its input, the register still holds when its unit reads it next.

    It is kept until the unit reads one of the same bank: registers of odd numbers are a bank, the others another.
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
