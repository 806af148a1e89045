"""Early stores: outputs stored among the multiply-adds of the last chunk, not all behind it.

ptxas stores an output as soon as its accumulator has its last product. Weight code takes the inputs in order, so nearly
all accumulators end together, and all blocks of a GPU would store at once. Therefore the last chunk passes over its
inputs several times, each time for some of the accumulators. The words that finish the outputs of one pass, its
early-store words, stand among the multiply-adds of the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.sass.assemble.scheduling import MOST_STALL, settle
from codegen.sass.assemble.scoreboards import EARLY_STORES
from codegen.sass.isa import encoding
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import ALWAYS, NO_SCOREBOARD, Words
from codegen.sass.isa.latencies import SETTLING_CYCLES
from codegen.sass.isa.opcodes import FIRST_PREDICATE, INPUT_PREDICATE, PREDICATES
from codegen.sass.isa.operands import Accesses, Operands, operands

PASSES = 2
"""Passes over the inputs of the last chunk."""
_FADD, _FMNMX, _FSETP, _FSEL = "FADD", "FMNMX", "FSETP", "FSEL"
_STEPS = (_FADD, _FMNMX, _FSETP, _FSEL)
"""Instructions that an accumulator may go through before it is stored."""
_APART = 6
"""Words from one step of an output to its next, so that no word waits for another."""
_LEAST_PREDICATES = 4
"""Fewest predicates: outputs whose steps overlap need one each."""
_PREDICATES = range(7)


@dataclass(frozen=True, eq=False)
class EarlyStores:
    """The words of a body behind its last chunk, early-store words first."""

    words: Words
    order: NDArray[np.int64]
    """[words]: the former place of each."""
    passes: NDArray[np.int64]
    """[early-store words]: the pass whose outputs each finishes."""
    pass_of_accumulator: NDArray[np.int64]
    """[accumulators]: the pass that each is finished in."""

    @staticmethod
    def of(words: Words, accumulators: NDArray[np.int64], end: int, architecture: Architecture) -> EarlyStores | None:
        """From the words behind the last chunk, the first `end` without branches; `accumulators` are registers.

        None where fewer outputs than passes can be finished early.
        """
        used = operands(words, architecture)
        chains = _undisturbed(_chains(words, used, accumulators, end), used)
        early = [chain for chain in chains if chain.early][: len(accumulators) * (PASSES - 1) // PASSES]
        free = _free_predicates(words, used, chains)
        enough = len(free) >= _LEAST_PREDICATES or not used.named(_FSETP).any()
        if len(early) < PASSES or not enough:
            return None
        words = words.copy()
        waits = _waits_for_others(words, chains)
        for chain in chains:
            chain.finish_in_place(words, used, waits)
        order: list[int] = []
        passes: list[int] = []
        pass_of_accumulator = np.full(len(accumulators), PASSES - 1)
        for number, chosen in enumerate(np.array_split(np.arange(len(early)), PASSES - 1)):
            for each in chosen.tolist():
                if free:
                    early[each].take_predicate(words, used, free[each % len(free)])
                pass_of_accumulator[early[each].accumulator] = number
            order += _in_turn([early[each].places for each in chosen.tolist()])
            passes += [number] * (len(order) - len(passes))
        rest = np.setdiff1d(np.arange(len(words)), order)
        first = words[rest[:1]]
        encoding.WAIT.put(first, encoding.WAIT.get(first) | np.bitwise_or.reduce(waits[order]))
        words[rest[:1]] = first
        moved = words[[*order, *rest.tolist()]]
        _keep_operands(moved, architecture)
        _settle(moved, end, architecture)
        return EarlyStores(moved, np.append(order, rest), np.array(passes, dtype=np.int64), pass_of_accumulator)


@dataclass(frozen=True, eq=False)
class _Chain:
    """The words that finish an output, in order; the last one stores it."""

    accumulator: int
    register: int
    places: list[int]
    early: bool
    """Whether no word uses a value computed behind the last chunk."""

    def finish_in_place(self, words: Words, used: Operands, waits: NDArray[np.int64]) -> None:
        """Keeps the output in the accumulator's register, without waits for other stores; `waits` are [words]."""
        own = words[self.places]
        is_store = np.arange(len(own)) == len(own) - 1
        computes = ~is_store & ~used.named(_FSETP)[self.places]
        encoding.DESTINATION.put(own, np.where(computes, self.register, encoding.DESTINATION.get(own)))
        encoding.SOURCE_A.put(own, np.where(is_store, encoding.SOURCE_A.get(own), self.register))
        encoding.SOURCE_B.put(own, np.where(is_store, self.register, encoding.SOURCE_B.get(own)))
        encoding.WAIT.put(own, 0 if self.early else waits[self.places])
        for field, value in ((encoding.REUSE, 0), (encoding.READ_SCOREBOARD, NO_SCOREBOARD)):
            field.put(own, value)
        words[self.places] = own

    def take_predicate(self, words: Words, used: Operands, predicate: int) -> None:
        own = words[self.places]
        for name, field in ((_FSETP, FIRST_PREDICATE), (_FSEL, INPUT_PREDICATE)):
            field.put(own, np.where(used.named(name)[self.places], predicate, field.get(own)))
        words[self.places] = own


def _chains(words: Words, used: Operands, accumulators: NDArray[np.int64], end: int) -> list[_Chain]:
    """The chains of accumulators finished before `end` by known instructions, in the order of their stores."""
    reads, writes = _by_word(used.reads, len(words)), _by_word(used.writes, len(words))
    plain = (encoding.PREDICATE.get(words) == ALWAYS) & (encoding.NEGATED_PREDICATE.get(words) == 0)
    steps = (used.named(*_STEPS) & plain).tolist()
    stores = used.named("STG").tolist()
    first, data = encoding.SOURCE_A.get(words).tolist(), encoding.SOURCE_B.get(words).tolist()
    owner = {register: number for number, register in enumerate(accumulators.tolist())}
    """The accumulator's number by register or predicate that depends on it."""
    computed: set[int] = set()
    places: dict[int, list[int]] = {number: [] for number in owner.values()}
    strange: set[int] = set()
    late: set[int] = set()
    stored: list[int] = []
    for place in range(len(words)):
        of = {owner[each] for each in reads[place] if each in owner}
        others = [each for each in reads[place] if each not in owner]
        number = of.pop() if len(of) == 1 and place < end else -1
        if number >= 0 and number not in stored:
            known = steps[place] and owner.get(first[place]) == number and len(writes[place]) == 1 and not others
            held = [each for each in reads[place] if each in owner]
            stores_it = stores[place] and held == [data[place]]
            if not (known or stores_it):
                strange.add(number)
            if computed.intersection(others):
                late.add(number)
            places[number].append(place)
            stored += [number] if stores_it else []
        else:
            strange |= of | ({number} - {-1})
            number = -1
        for each in writes[place]:
            owner.pop(each, None)
            computed.discard(each)
            if number < 0:
                computed.add(each)
            else:
                owner[each] = number
    good = [number for number in stored if number not in strange]
    lengths = [len(places[number]) for number in good]
    usual = max(set(lengths), key=lengths.count, default=0)
    return [
        _Chain(number, int(accumulators[number]), places[number], number not in late and len(places[number]) == usual)
        for number in good
    ]


def _undisturbed(chains: list[_Chain], used: Operands) -> list[_Chain]:
    """The chains whose register no word outside of chains writes."""
    while True:
        own = np.zeros(len(used.opcode_of), dtype=np.bool_)
        own[[place for chain in chains for place in chain.places]] = True
        taken = set(used.writes.resource[~own[used.writes.word]].tolist())
        left = [chain for chain in chains if chain.register not in taken]
        if len(left) == len(chains):
            return left
        chains = left


def _free_predicates(words: Words, used: Operands, chains: list[_Chain]) -> list[int]:
    """Predicates that only words of these chains use behind the last chunk."""
    own = np.zeros(len(words), dtype=np.bool_)
    own[[place for chain in chains for place in chain.places]] = True
    taken = {PREDICATES + guard for guard in encoding.PREDICATE.get(words).tolist()}
    for accesses in (used.reads, used.writes):
        taken |= set(accesses.resource[~own[accesses.word]].tolist())
    return [each for each in _PREDICATES if PREDICATES + each not in taken]


def _waits_for_others(words: Words, chains: list[_Chain]) -> NDArray[np.int64]:
    """[words]: the scoreboards that each waits for, without those that only stores of these chains set."""
    stores = {chain.places[-1] for chain in chains}
    waits, boards = encoding.WAIT.get(words), encoding.READ_SCOREBOARD.get(words).tolist()
    set_by_others = {int(board) for place, board in enumerate(boards) if place not in stores}
    set_by_others |= set(encoding.WRITE_SCOREBOARD.get(words).tolist())
    set_here = 0
    for place, board in enumerate(boards):
        waits[place] &= ~set_here
        if place in stores and board not in {NO_SCOREBOARD, *set_by_others}:
            set_here |= 1 << board
    return waits


def _in_turn(chains: list[list[int]]) -> list[int]:
    """The places of several chains' words, interleaved so that no step waits for the one before."""
    steps = len(chains[0])
    apart = -(-_APART // steps)
    turns = range(len(chains) + apart * (steps - 1))
    numbers = [(turn - apart * step, step) for turn in turns for step in reversed(range(steps))]
    return [chains[number][step] for number, step in numbers if 0 <= number < len(chains)]


def _keep_operands(words: Words, architecture: Architecture) -> None:
    """Adds waits, in place, for stores whose operands a later word overwrites: an old wait may have moved."""
    used = operands(words, architecture)
    reads, writes = _by_word(used.reads, len(words)), _by_word(used.writes, len(words))
    late = used.asynchronous.tolist()
    read_boards = encoding.READ_SCOREBOARD.get(words).tolist()
    boards = encoding.WRITE_SCOREBOARD.get(words).tolist()
    waits, stalls = encoding.WAIT.get(words).tolist(), encoding.STALL.get(words).tolist()
    reader: dict[int, int] = {}
    for place in range(len(words)):
        if late[place]:
            reader |= {each: place for each in reads[place] if each < PREDICATES}
            continue
        for before in [reader.pop(each) for each in writes[place] if each in reader]:
            own = {read_boards[before], boards[before]} - {NO_SCOREBOARD}
            if not own:
                own, read_boards[before] = {EARLY_STORES}, EARLY_STORES
                stalls[before] = max(SETTLING_CYCLES, stalls[before])
            if not any(waits[each] >> board & 1 for each in range(before + 1, place + 1) for board in own):
                waits[place] |= 1 << min(own)
    for field, values in ((encoding.READ_SCOREBOARD, read_boards), (encoding.WAIT, waits), (encoding.STALL, stalls)):
        field.put(words, values)


def _settle(words: Words, end: int, architecture: Architecture) -> None:
    """Sets the stalls of the words before `end`, in place; unknown instructions keep at least their own.

    A word that sets a scoreboard may now stand right before one that waits for it.
    """
    used, stalls = operands(words, architecture), encoding.STALL.get(words)
    bare = (encoding.WRITE_SCOREBOARD.get(words) == NO_SCOREBOARD) & (
        encoding.READ_SCOREBOARD.get(words) == NO_SCOREBOARD
    )
    known = bare & (used.named(*_STEPS, "STG"))
    moves = np.arange(len(words)) < end - 1
    waited = np.append(encoding.WAIT.get(words)[1:], 0)
    sets = 1 << encoding.WRITE_SCOREBOARD.get(words) | 1 << encoding.READ_SCOREBOARD.get(words)
    stalls = np.where(waited & sets, np.maximum(stalls, SETTLING_CYCLES), stalls)
    settle(words, np.where(known & moves, 1, stalls), np.where(moves, MOST_STALL, stalls), architecture)


def _by_word(accesses: Accesses, count: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for place, resource in zip(accesses.word.tolist(), accesses.resource.tolist(), strict=True):
        found[place].append(resource)
    return found
