"""Operand loads: the loads of inputs into the banks of the operand ring, and their places in the weight code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.assemble.input_transforms import InputTransform
from codegen.sass.assemble.scoreboards import WEIGHT_CODE
from codegen.sass.skeleton.inputs import TURN_WORDS, Gates
from codegen.sass.skeleton.marker_ptx import BANKS, MarkerPtx
from codegen.sass.skeleton.reader import Skeleton

PLACES = 2
"""Places of the operand ring that a turn with gates takes."""


@dataclass(frozen=True, eq=False)
class Products:
    """The slots with non-zero weights, in order: [products] each."""

    segment: NDArray[np.int64]
    """Number of the K group times the number of chunks, plus the chunk."""
    slot: NDArray[np.int64]
    chunk: NDArray[np.int64]
    bounds: NDArray[np.float32]
    """[segments, inputs of the loop, 2]: lowest and highest value; no inputs without bounds."""


@dataclass(frozen=True, eq=False)
class OperandLoads:
    """The loads of weight code. Operations are its multiply-adds and the words that transform inputs, in order."""

    multiplicand: NDArray[np.int64]
    """[products]: the register of the input."""
    run: NDArray[np.int64]
    """[products]: number of the load; neighbours that use the words of one load share it."""
    register: NDArray[np.int64]
    pointer: NDArray[np.int64]
    offset: NDArray[np.int64]
    """[loads]: bytes from the pointer."""
    words: NDArray[np.int64]
    scoreboard: NDArray[np.int64]
    segment: NDArray[np.int64]
    before: NDArray[np.int64]
    """[loads]: the operation that each comes before."""
    leads: NDArray[np.int64]
    """The first load of each turn."""
    users: NDArray[np.int64]
    """The operation that waits for the loads of each turn."""
    transform: InputTransform


def operand_loads(
    template: MarkerPtx,
    skeleton: Skeleton,
    products: Products,
    scoreboards: Sequence[int] = WEIGHT_CODE,
    *,
    overlapped: bool = False,
) -> OperandLoads:
    """The loads that these products need.

    `overlapped` chunks use the ring from the place where the chunk before ends.
    """
    if template.gates is not None:
        return _gated(template, template.gates, skeleton, products)
    # One load for each run of multiply-adds that use the words of one load of the template.
    slot, segment = products.slot, products.segment
    load, element = template.slot_load[slot], template.slot_element[slot]
    begins = changes(load, segment)
    run, first = np.cumsum(begins) - 1, np.flatnonzero(begins)
    start, width = narrowed(np.bitwise_or.reduceat(1 << element, first), template.load_words[load[first]])
    position = positions(segment[first])
    in_bank = skeleton.ring.shape[1] // BANKS
    turn, lane = position // in_bank, position % in_bank
    begun = segment[first]
    if overlapped:
        begun = begun // template.chunks
        turn = _turns_of_group(turn, segment[first], begun)
    register = skeleton.ring[products.chunk[first], turn % BANKS * in_bank + lane]
    multiplicand = register[run] + element - start[run]
    transform = InputTransform.none()
    if template.bounds is not None:
        of_turn = changes(turn, begun)
        begin = first[of_turn][np.cumsum(of_turn) - 1]
        transform = InputTransform.by_bounds(
            template.bounds, products.bounds, slot, segment, multiplicand, run, begin[run]
        )
    operation = transform.begun(first)
    before, leads = places(begun, turn, lane, operation, len(slot) + len(transform), in_bank, BANKS)
    return OperandLoads(
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
        transform=transform,
    )


def _turns_of_group(turn: NDArray[np.int64], segment: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """[loads]: the turn of each, counted from the begin of its group rather than of its segment."""
    all_turns = np.cumsum(changes(turn, segment)) - 1
    begins = np.flatnonzero(changes(group))
    return all_turns - np.repeat(all_turns[begins], np.diff(begins, append=len(turn)))


def _gated(template: MarkerPtx, gates: Gates, skeleton: Skeleton, products: Products) -> OperandLoads:
    """The loads of inputs and gates: a turn's inputs are multiplied by their gates when it begins.

    A turn has the inputs of a statement of the template, or of several short ones, in one place of the ring and their
    gates in the next.
    """
    slot, segment = products.slot, products.segment
    of_slot = gates.of_slot[slot]
    begins = changes(of_slot, segment)
    first = np.flatnonzero(begins)  # of each input in use
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

    inputs = _TurnLoads.of(
        all_turns, template.slot_load[slot[first]], template.slot_element[slot[first]], template.load_words
    )
    factors = _TurnLoads.of(all_turns, gates.load[number], gates.element[number], gates.load_words)
    if (inputs.misplaced(word) | factors.misplaced(word)).any():
        raise MachineCodeError("a load of inputs with gates is shared by several statements")
    order = np.argsort(np.concatenate([all_turns[inputs.first], all_turns[factors.first]]), kind="stable")

    def both(of_inputs: NDArray[np.int64], of_gates: NDArray[np.int64]) -> NDArray[np.int64]:
        joined: NDArray[np.int64] = np.concatenate([of_inputs, of_gates])[order]
        return joined

    at = both(inputs.first, factors.first)  # the first input of each load
    # Operations are the products and, at the begin of each turn, its multiplications by gates.
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
    return OperandLoads(
        multiplicand=register[np.cumsum(begins) - 1],
        run=np.cumsum(begins) - 1,
        register=both(register[inputs.first] + inputs.beyond, gate_register[factors.first] + factors.beyond),
        pointer=both(template.load_pointer[inputs.load], template.gate_pointer[factors.load]),
        offset=both(
            template.load_offset[inputs.load] + 4 * inputs.start, gates.offsets[factors.load] + 4 * factors.start
        ),
        words=both(inputs.words, factors.words),
        scoreboard=np.array(WEIGHT_CODE)[turn[at] % len(WEIGHT_CODE)],
        segment=segment[at],
        before=before,
        leads=leads,
        users=begin_operation[all_turns[at[leads]]],
        transform=InputTransform.by_gates(first[turn_begins][all_turns], register, gate_register),
    )


@dataclass(frozen=True, eq=False)
class _TurnLoads:
    """Loads of inputs, one for each run of a turn's inputs that the same load of the template brings."""

    first: NDArray[np.int64]
    """[loads]: the first of these inputs."""
    load: NDArray[np.int64]
    """[loads]: its number in the template."""
    start: NDArray[np.int64]
    """[loads]: the first of its words that is loaded."""
    words: NDArray[np.int64]
    """[loads]: the number of words loaded."""
    beyond: NDArray[np.int64]
    """[loads]: the register of the first word, counted from the first input's place."""
    run: NDArray[np.int64]
    """[inputs]: the load of each."""
    element: NDArray[np.int64]

    @staticmethod
    def of(
        turns: NDArray[np.int64], load: NDArray[np.int64], element: NDArray[np.int64], load_words: NDArray[np.int64]
    ) -> _TurnLoads:
        begins = changes(load, turns)
        first = np.flatnonzero(begins)
        start, words = narrowed(np.bitwise_or.reduceat(1 << element, first), load_words[load[first]])
        return _TurnLoads(first, load[first], start, words, start - element[first], np.cumsum(begins) - 1, element)

    def misplaced(self, word: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[inputs]: whether an input's `word` in its place differs from where its load writes it."""
        whole = self.words[self.run]
        apart: NDArray[np.bool_] = (word - self.element != (word - self.element)[self.first][self.run]) | (
            (word - self.element + self.start[self.run]) % whole != 0
        )
        return apart


def changes(*keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether one of the keys, all of one length, differs from its predecessor; True for the first."""
    result = np.ones(len(keys[0]), dtype=np.bool_)
    result[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return result


def narrowed(used: NDArray[np.int64], words: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first word and the number of words of each load that cover the words in use, as an aligned 1, 2 or 4."""
    start, width = np.zeros(16, dtype=np.int64), np.full(16, 4, dtype=np.int64)
    for mask in range(1, 16):
        lowest, highest = (mask & -mask).bit_length() - 1, mask.bit_length() - 1
        if lowest == highest:
            start[mask], width[mask] = lowest, 1
        elif lowest // 2 == highest // 2:
            start[mask], width[mask] = lowest // 2 * 2, 2
    return start[used], np.minimum(width[used], words)


def positions(segment: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each element within its segment."""
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
    """The operation, of `count`, that each load goes before; and the first load of each turn.

    The loads of the first turns go to the begin of the segment. A later turn's bank is free when the previous turn in
    it ends: its loads are spread over the operations of the turn after that one.
    """
    leads = np.flatnonzero(changes(turn, segment))
    number = np.repeat(np.arange(len(leads)), np.diff(leads, append=len(segment)))
    begins = np.append(first[leads], count)
    ahead = np.minimum(turn, banks - 1)
    phase = number - ahead
    length = begins[phase + 1] - begins[phase]
    return begins[phase] + np.where(turn < banks, 0, length * lane // in_bank), leads
