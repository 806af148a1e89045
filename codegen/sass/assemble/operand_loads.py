"""Which inputs a stream loads, where to and when: into a ring of registers whose banks are loaded in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.assemble.early_loads import OF_STREAMS
from codegen.sass.assemble.input_gates import PLACES, TURN_WORDS, Gates, multiplied
from codegen.sass.assemble.input_transforms import Preparation
from codegen.sass.skeleton.marker_ptx import BANKS, Marked
from codegen.sass.skeleton.reader import Skeleton


@dataclass(frozen=True, eq=False)
class Products:
    """Which slots are multiplied with, in order: [products] each."""

    segment: NDArray[np.int64]
    """K group times chunks, plus chunk."""
    slot: NDArray[np.int64]
    chunk: NDArray[np.int64]
    bounds: NDArray[np.float32]
    """[segments, inputs of the loop, 2]: lowest and highest, of layers whose inputs have such."""


@dataclass(frozen=True, eq=False)
class Fetches:
    """The loads of a stream; operations are its multiply-adds and what prepares their inputs, in their order."""

    multiplicand: NDArray[np.int64]
    """[products]: the register of the input."""
    run: NDArray[np.int64]
    """[products]: one number for the neighbours that have the words of one load."""
    register: NDArray[np.int64]
    pointer: NDArray[np.int64]
    offset: NDArray[np.int64]
    """[loads]: bytes from where the pointer points."""
    words: NDArray[np.int64]
    scoreboard: NDArray[np.int64]
    segment: NDArray[np.int64]
    before: NDArray[np.int64]
    """[loads]: the operation before which each comes."""
    leads: NDArray[np.int64]
    """The loads that are the first of their turn,"""
    users: NDArray[np.int64]
    """and the operation of each that waits for the turn."""
    prepared: Preparation


def fetches(
    template: Marked,
    skeleton: Skeleton,
    products: Products,
    scoreboards: Sequence[int] = OF_STREAMS,
    *,
    running: bool = False,
) -> Fetches:
    """What these products need. `running` streams go on with the ring where the chunk before has left it."""
    if template.gates is not None:
        return _gated(template, template.gates, skeleton, products)
    # A load for each run of multiply-adds with the words of one load of the template.
    slot, segment = products.slot, products.segment
    load, element = template.slot_load[slot], template.slot_element[slot]
    begins = changes(load, segment)
    run, first = np.cumsum(begins) - 1, np.flatnonzero(begins)
    start, width = narrowed(np.bitwise_or.reduceat(1 << element, first), template.load_words[load[first]])
    position = positions(segment[first])
    in_bank = skeleton.ring.shape[1] // BANKS
    turn, lane = position // in_bank, position % in_bank
    begun = segment[first]
    if running:
        begun = begun // template.chunks
        turn = _running(turn, segment[first], begun)
    register = skeleton.ring[products.chunk[first], turn % BANKS * in_bank + lane]
    multiplicand = register[run] + element - start[run]
    prepared = Preparation.none()
    if template.bounds is not None:
        of_turn = changes(turn, begun)
        begin = first[of_turn][np.cumsum(of_turn) - 1]
        prepared = template.bounds.preparation(products.bounds, slot, segment, multiplicand, run, begin[run])
    operation = prepared.begun(first)
    before, leads = places(begun, turn, lane, operation, len(slot) + len(prepared), in_bank, BANKS)
    return Fetches(
        multiplicand=multiplicand,
        run=run,
        register=register,
        pointer=template.load_pointer[load[first]],
        offset=template.load_offset[load[first]] + 4 * start,
        words=width,
        scoreboard=np.array(scoreboards)[turn % len(scoreboards)],
        segment=segment[first],
        before=before,
        leads=leads,
        users=operation[leads],
        prepared=prepared,
    )


def _running(turn: NDArray[np.int64], segment: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The turns of loads, counted from the begin of their group rather than of their segment."""
    all_turns = np.cumsum(changes(turn, segment)) - 1
    begins = np.flatnonzero(changes(group))
    return all_turns - np.repeat(all_turns[begins], np.diff(begins, append=len(turn)))


def _gated(template: Marked, gates: Gates, skeleton: Skeleton, products: Products) -> Fetches:
    """A turn's inputs are multiplied by their gates at its beginning, all together."""
    slot, segment = products.slot, products.segment
    of_slot = gates.of_slot[slot]
    begins = changes(of_slot, segment)
    first = np.flatnonzero(begins)  # of each input that is used
    number, segment, chunk = of_slot[first], segment[first], products.chunk[first]
    banks = skeleton.ring.shape[1] // PLACES
    statement = np.cumsum(changes(gates.statement[number], segment)) - 1
    in_segment = statement - statement[np.flatnonzero(changes(segment))][np.cumsum(changes(segment)) - 1]
    together = TURN_WORDS // gates.statement_words
    turn = in_segment // together
    word = in_segment % together * gates.statement_words + gates.word[number]
    all_turns = np.cumsum(changes(turn, segment)) - 1
    place = skeleton.ring[chunk, turn % banks * PLACES]
    gate_place = skeleton.ring[chunk, turn % banks * PLACES + 1]

    inputs = _Loads.of(
        all_turns, template.slot_load[slot[first]], template.slot_element[slot[first]], template.load_words
    )
    factors = _Loads.of(all_turns, gates.load[number], gates.element[number], gates.load_words)
    if (inputs.misplaced(word) | factors.misplaced(word)).any():
        raise MachineCodeError("a load of inputs with gates that other statements have a part in")
    order = np.argsort(np.concatenate([all_turns[inputs.first], all_turns[factors.first]]), kind="stable")

    def both(of_inputs: NDArray[np.int64], of_gates: NDArray[np.int64]) -> NDArray[np.int64]:
        joined: NDArray[np.int64] = np.concatenate([of_inputs, of_gates])[order]
        return joined

    at = both(inputs.first, factors.first)  # the first input that a load is of
    # Operations are the products, and at the beginning of each turn its multiplications.
    turn_begins = np.flatnonzero(changes(all_turns))
    begin_operation = first[turn_begins] + turn_begins
    lane = positions(all_turns[at])
    before, leads = places(
        segment[at],
        turn[at],
        lane,
        begin_operation[all_turns[at]],
        len(slot) + len(first),
        np.bincount(all_turns[at])[all_turns[at]],
        banks,
    )
    register, gate_register = place + word, gate_place + word
    return Fetches(
        multiplicand=register[np.cumsum(begins) - 1],
        run=np.cumsum(begins) - 1,
        register=both(register[inputs.first] + inputs.beyond, gate_register[factors.first] + factors.beyond),
        pointer=both(template.load_pointer[inputs.load], template.gate_pointer[factors.load]),
        offset=both(
            template.load_offset[inputs.load] + 4 * inputs.start, gates.offsets[factors.load] + 4 * factors.start
        ),
        words=both(inputs.words, factors.words),
        scoreboard=np.array(OF_STREAMS)[turn[at] % len(OF_STREAMS)],
        segment=segment[at],
        before=before,
        leads=leads,
        users=begin_operation[all_turns[at[leads]]],
        prepared=multiplied(first[turn_begins][all_turns], register, gate_register),
    )


@dataclass(frozen=True, eq=False)
class _Loads:
    """Loads of the template that inputs come with, one for each run of inputs of a turn that have the same."""

    first: NDArray[np.int64]
    """[loads]: the first of these inputs."""
    load: NDArray[np.int64]
    """Its number in the template,"""
    start: NDArray[np.int64]
    """the first of its words that is loaded,"""
    words: NDArray[np.int64]
    """how many are,"""
    beyond: NDArray[np.int64]
    """and where that goes, counted from the first input's place."""
    run: NDArray[np.int64]
    """[inputs]: the load of each."""
    element: NDArray[np.int64]

    @staticmethod
    def of(
        turns: NDArray[np.int64], load: NDArray[np.int64], element: NDArray[np.int64], load_words: NDArray[np.int64]
    ) -> _Loads:
        begins = changes(load, turns)
        first = np.flatnonzero(begins)
        start, words = narrowed(np.bitwise_or.reduceat(1 << element, first), load_words[load[first]])
        return _Loads(first, load[first], start, words, start - element[first], np.cumsum(begins) - 1, element)

    def misplaced(self, word: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[inputs]: whether the word of its place [inputs] is not where its load brings it."""
        whole = self.words[self.run]
        apart: NDArray[np.bool_] = (word - self.element != (word - self.element)[self.first][self.run]) | (
            (word - self.element + self.start[self.run]) % whole != 0
        )
        return apart


def changes(*keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where one of the keys, all of one length, is not what it was before; at the first too."""
    result = np.ones(len(keys[0]), dtype=np.bool_)
    result[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return result


def narrowed(used: NDArray[np.int64], words: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each load the first word and the number of words that cover those in use, as an aligned 1, 2 or 4."""
    start, width = np.zeros(16, dtype=np.int64), np.full(16, 4, dtype=np.int64)
    for mask in range(1, 16):
        lowest, highest = (mask & -mask).bit_length() - 1, mask.bit_length() - 1
        if lowest == highest:
            start[mask], width[mask] = lowest, 1
        elif lowest // 2 == highest // 2:
            start[mask], width[mask] = lowest // 2 * 2, 2
    return start[used], np.minimum(width[used], words)


def positions(segment: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each its number within its segment."""
    begins = np.flatnonzero(changes(segment))
    counts = np.diff(begins, append=len(segment))
    return np.arange(len(segment)) - np.repeat(begins, counts)


def places(
    segment: NDArray[np.int64],
    turn: NDArray[np.int64],
    lane: NDArray[np.int64],
    first: NDArray[np.int64],
    count: int,
    in_bank: int | NDArray[np.int64],
    banks: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each load the operation, of so many, before which it goes; and which loads are the first of their turn.

    The first turns' loads go to the head of the segment. A later turn's bank is free when the turn that had it is
    over: its loads are spread over the operations of the next one.
    """
    leads = np.flatnonzero(changes(turn, segment))
    number = np.repeat(np.arange(len(leads)), np.diff(leads, append=len(segment)))
    begins = np.append(first[leads], count)
    ahead = np.minimum(turn, banks - 1)
    phase = number - ahead
    length = begins[phase + 1] - begins[phase]
    return begins[phase] + np.where(turn < banks, 0, length * lane // in_bank), leads
