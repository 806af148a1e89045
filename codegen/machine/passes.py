"""The last chunk in passes: what one pass has finished is stored while the next one multiplies.

ptxas stores a sum as soon as it has its last product. A stream has the inputs in order and nearly all sums to its end,
so that all blocks of a GPU would store everything at once. In its last chunk it goes through the inputs several times,
each time for some of the sums, and the words that finish these stand amid the multiply-adds of the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.machine import word
from codegen.machine.operands import Operands, operands
from codegen.machine.program import Program
from codegen.machine.schedule import MOST_STALL, SETTLE_CYCLES
from codegen.machine.shapes import FIRST_PREDICATE, INPUT_PREDICATE, PREDICATES
from codegen.machine.word import ALWAYS, NO_SCOREBOARD, Words

PASSES = 2
"""Through the inputs of the last chunk."""
_PREDICATES = range(7)
_FMNMX, _FSETP, _FSEL = 0x009, 0x00B, 0x008
_STEPS = (word.FADD_IMMEDIATE & 0x1FF, _FMNMX, _FSETP, _FSEL)
_LAST_BOARD = 5
_APART = 6
"""Words from one step of a sum to its next, so that no word waits for another."""


@dataclass(frozen=True, eq=False)
class Finish:
    """The words of a leaf behind its last chunk, in another order."""

    order: NDArray[np.int64]
    """[words]: the place that each had."""
    words: Words
    passes: NDArray[np.int64]
    """[words that stand amid multiply-adds]: which pass has finished the sum of each; they come first."""
    pass_of_sum: NDArray[np.int64]
    """[sums]"""

    @staticmethod
    def of(words: Words, sums: NDArray[np.int64], end: int) -> Finish:
        """Of words of which those before `end` may change places; `sums` are registers."""
        none = Finish(np.arange(len(words)), words, np.zeros(0, np.int64), np.zeros(len(sums), np.int64))
        if PASSES < 2 or not end:
            return none
        used = operands(words)
        chains = _undisturbed(_chains(words, used, sums, end), used)
        movable = [chain for chain in chains if chain.movable]
        early = movable[: len(sums) * (PASSES - 1) // PASSES]
        if len(early) < PASSES:
            return none
        free = _free_predicates(words, used, chains)
        if len(free) < len(early[0].places) and len(free) < 4:
            return none
        words = words.copy()
        # Each sum is finished in its own register: nothing waits until a store has read it.
        boards = 0
        for chain in chains:
            boards |= chain.finish_in_place(words)
        groups = np.array_split(np.arange(len(early)), PASSES - 1)
        order: list[int] = []
        passes: list[int] = []
        pass_of_sum = np.full(len(sums), PASSES - 1)
        for number, group in enumerate(groups):
            chosen = [early[each] for each in group.tolist()]
            for index, chain in enumerate(chosen):
                chain.take_predicate(words, free[index % len(free)])
                pass_of_sum[chain.sum] = number
            places = _in_turn([chain.places for chain in chosen])
            order += places
            passes += [number] * len(places)
        taken = set(order)
        rest = [place for place in range(len(words)) if place not in taken]
        if rest:
            first = words[rest[:1]]
            word.WAIT.put(first, word.WAIT.get(first) | boards)
            words[rest[:1]] = first
        order += rest
        moved = words[order]
        _keep_operands(moved)
        _settle(moved, end)
        return Finish(np.array(order, dtype=np.int64), moved, np.array(passes, dtype=np.int64), pass_of_sum)


@dataclass(frozen=True, eq=False)
class _Chain:
    """The words that finish a sum, one after the other; the last one stores it."""

    sum: int
    register: int
    places: list[int]
    movable: bool
    """Whether it needs nothing that is computed behind the last chunk."""

    def finish_in_place(self, words: Words) -> int:
        """Returns what its words have waited for."""
        own = words[self.places]
        waits = int(np.bitwise_or.reduce(word.WAIT.get(own)))
        opcodes = word.OPCODE.get(own) & 0x1FF
        steps, store = np.arange(len(own)) < len(own) - 1, len(own) - 1
        sets_predicate = opcodes == _FSETP
        writes = steps & ~sets_predicate
        target = word.DESTINATION.get(own)
        source = word.SOURCE_A.get(own)
        word.DESTINATION.put(own, np.where(writes, self.register, target))
        word.SOURCE_A.put(own, np.where(steps, self.register, source))
        data = word.SOURCE_B.get(own)
        data[store] = self.register
        word.SOURCE_B.put(own, data)
        for field, value in ((word.REUSE, 0), (word.WAIT, 0), (word.READ_SCOREBOARD, NO_SCOREBOARD)):
            field.put(own, value)
        words[self.places] = own
        return waits

    def take_predicate(self, words: Words, predicate: int) -> None:
        own = words[self.places]
        opcodes = word.OPCODE.get(own) & 0x1FF
        written = np.where(opcodes == _FSETP, predicate, FIRST_PREDICATE.get(own))
        read = np.where(opcodes == _FSEL, predicate, INPUT_PREDICATE.get(own))
        FIRST_PREDICATE.put(own, written)
        INPUT_PREDICATE.put(own, read)
        words[self.places] = own


def _chains(words: Words, used: Operands, sums: NDArray[np.int64], end: int) -> list[_Chain]:
    """Of the sums that end before `end` with words that are known here, in the order of their stores."""
    reads, writes = _by_word(used.reads, len(words)), _by_word(used.writes, len(words))
    opcodes = (word.OPCODE.get(words) & 0x1FF).tolist()
    whole = word.OPCODE.get(words).tolist()
    a, b, data = (field.get(words).tolist() for field in (word.SOURCE_A, word.SOURCE_B, word.SOURCE_B))
    plain = ((word.PREDICATE.get(words) == ALWAYS) & (word.NEGATED_PREDICATE.get(words) == 0)).tolist()
    first = FIRST_PREDICATE.get(words).tolist()
    chosen = INPUT_PREDICATE.get(words).tolist()
    owner: dict[int, int] = {int(register): number for number, register in enumerate(sums.tolist())}
    predicates: dict[int, int] = {}
    places: dict[int, list[int]] = {number: [] for number in owner.values()}
    broken: set[int] = set()
    stored: list[int] = []
    written: set[int] = set()
    late: set[int] = set()
    for place in range(len(words)):
        of = {owner[each] for each in reads[place] if each in owner}
        of |= {predicates[each - PREDICATES] for each in reads[place] if each - PREDICATES in predicates}
        is_store = whole[place] == word.STG
        if len(of) == 1 and place < end:
            (number,) = of
            own = [each for each in reads[place] if owner.get(each) == number]
            step = opcodes[place] in _STEPS and plain[place] and owner.get(a[place]) == number
            step &= len(set(own)) == 1 and len(writes[place]) == 1
            if opcodes[place] == _FSETP:
                step &= bool(writes[place]) and writes[place][0] == PREDICATES + first[place]
            if opcodes[place] == _FSEL:
                step &= predicates.get(chosen[place]) == number
            is_store &= owner.get(data[place]) == number and number not in stored and own == [data[place]]
            if not (step or is_store) or number in stored:
                broken.add(number)
            if written.intersection(each for each in reads[place] if owner.get(each) != number and predicates.get(each - PREDICATES) != number):
                late.add(number)
            places[number].append(place)
            if is_store:
                stored.append(number)
        else:
            broken |= of
            number = -1
        for each in writes[place]:
            owner.pop(each, None)
            predicates.pop(each - PREDICATES, None)
            if number < 0:
                written.add(each)
            elif each >= PREDICATES:
                predicates[each - PREDICATES] = number
            else:
                owner[each] = number
                written.discard(each)
    good = [number for number in stored if number not in broken]
    lengths = [len(places[number]) for number in good]
    usual = max(set(lengths), key=lengths.count, default=0)
    return [
        _Chain(number, int(sums[number]), places[number], number not in late and len(places[number]) == usual)
        for number in good
    ]


def _undisturbed(chains: list[_Chain], used: Operands) -> list[_Chain]:
    """Those whose sum's register no other word takes for something else, when the sum is no longer needed."""
    while True:
        others = np.ones(len(used.shape_of), dtype=np.bool_)
        for chain in chains:
            others[chain.places] = False
        taken = set(used.writes.resource[others[used.writes.word]].tolist())
        left = [chain for chain in chains if chain.register not in taken]
        if len(left) == len(chains):
            return left
        chains = left


def _keep_operands(words: Words) -> None:
    """Waits, in place, until a store has read what is overwritten then: it may have relied on a store that moved."""
    used = operands(words)
    reads, writes = (_by_word(each, len(words)) for each in (used.reads, used.writes))
    late = np.array([shape.asynchronous for shape in used.shapes], dtype=np.bool_)[used.shape_of].tolist()
    boards = [word.READ_SCOREBOARD.get(words).tolist(), word.WRITE_SCOREBOARD.get(words).tolist()]
    waits, stalls = word.WAIT.get(words).tolist(), word.STALL.get(words).tolist()
    reader: dict[int, int] = {}
    for place in range(len(words)):
        for resource in [] if late[place] else writes[place]:
            before = reader.pop(resource, place)
            if before == place:
                continue
            own = {each[before] for each in boards} - {NO_SCOREBOARD}
            if not own:
                own = {_LAST_BOARD}
                boards[0][before] = _LAST_BOARD
                stalls[before] = max(SETTLE_CYCLES, stalls[before])
            if not any(waits[each] >> board & 1 for each in range(before + 1, place + 1) for board in own):
                waits[place] |= 1 << min(own)
        if late[place]:
            reader.update(dict.fromkeys((each for each in reads[place] if each < PREDICATES), place))
    word.READ_SCOREBOARD.put(words, boards[0])
    word.WAIT.put(words, waits)
    word.STALL.put(words, stalls)


def _by_word(accesses: object, count: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for place, resource in zip(accesses.word.tolist(), accesses.resource.tolist(), strict=True):  # type: ignore[attr-defined]
        found[place].append(resource)
    return found


def _free_predicates(words: Words, used: Operands, chains: list[_Chain]) -> list[int]:
    """Those that no other word behind the last chunk reads."""
    own = np.zeros(len(words), dtype=np.bool_)
    for chain in chains:
        own[chain.places] = True
    reads, writes = used.reads, used.writes
    taken = set(reads.resource[~own[reads.word]].tolist()) | set(writes.resource[~own[writes.word]].tolist())
    guards = word.PREDICATE.get(words)
    taken |= {PREDICATES + each for each in guards.tolist()}
    return [each for each in _PREDICATES if PREDICATES + each not in taken]


def _in_turn(chains: list[list[int]]) -> list[int]:
    """The places of several chains' words, the steps of each so far apart that none waits."""
    steps = len(chains[0])
    apart = -(-_APART // steps)
    found: list[int] = []
    for turn in range(len(chains) + apart * (steps - 1)):
        for step in reversed(range(steps)):
            number = turn - apart * step
            if 0 <= number < len(chains):
                found.append(chains[number][step])
    return found


def _settle(words: Words, end: int) -> None:
    """Stalls of the words before `end`, in place: as long as results take, or as they were."""
    program = Program(words, np.zeros(0, dtype=np.int64))
    needs: list[list[tuple[int, int]]] = [[] for _ in range(len(words))]
    for accesses, writing in ((program.used.reads, False), (program.used.writes, True)):
        places, resources = accesses.word, accesses.resource
        writer = program.used.writes.before(resources, places)
        there = (writer >= 0) & (places < end)
        there[there] &= ~program.variable[writer[there]]
        places, resources, writer = places[there], resources[there], writer[there]
        needed = program.needed(writer, places, resources, writing=writing)
        for place, before, cycles in zip(places.tolist(), writer.tolist(), needed.tolist(), strict=True):
            needs[place].append((before, cycles))
    stalls = program.stalls.tolist()
    simple = (program.write_scoreboard == NO_SCOREBOARD) & (program.read_scoreboard == NO_SCOREBOARD)
    known = np.isin(word.OPCODE.get(words) & 0x1FF, (*_STEPS, word.STG & 0x1FF)) & simple
    issue = 0
    issued: list[int] = []
    for place in range(min(end, len(words))):
        if place:
            least = 1 if known[place - 1] else stalls[place - 1]
            issue = issued[-1] + least
            issue = max([issue, *(issued[before] + cycles for before, cycles in needs[place])])
            stalls[place - 1] = min(MOST_STALL, issue - issued[-1])
            issue = issued[-1] + stalls[place - 1]
        issued.append(issue)
    changed = np.array(stalls) != program.stalls
    word.YIELD.put(words, np.where(changed, np.array(stalls) < 3, word.YIELD.get(words)))
    word.STALL.put(words, np.array(stalls))
