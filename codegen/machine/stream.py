"""Non-zero weights -> the loads and multiply-adds of every chunk of every K group, as words.

Multiply-adds come in the template's order, and so with every sum's products in the order that the rewriter leaves. An
input is loaded as soon as its place in the ring is free: the ring has four banks, each has a scoreboard of its own that
the first multiply-add of its inputs waits for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.machine import word
from codegen.machine.marked import Marked
from codegen.machine.skeleton import Skeleton
from codegen.machine.word import NO_SCOREBOARD, ZERO_REGISTER, Words

BANKS = 4
"""Of the ring: three are being loaded while one is used."""
FIRST_SCOREBOARD, SCOREBOARDS_USED = 1, 5
"""Not the first: ptxas counts copies to shared memory with it."""
FMA_CYCLES = 4
"""From a multiply-add to one that adds to its result."""
RESULT_CYCLES = 5
"""From the last multiply-add of a chunk to whatever follows."""
SETTLE_CYCLES = 2
"""From an instruction that sets a scoreboard to one that waits for it."""
MOST_STALL = 15
_FMA = word.FFMA_IMMEDIATE | word.ALWAYS << 12
_LOAD = word.LDS | word.ALWAYS << 12
_LOAD_SIZES = np.array([0, 4, 5, 0, 6])
"""The size field by the words that are loaded."""


@dataclass(frozen=True, eq=False)
class Streams:
    """All chunks of all K groups of a kernel."""

    words: Words
    ends: NDArray[np.int64]
    """[groups * chunks]: where each ends in `words`; a group's chunks follow each other."""
    untouched: NDArray[np.bool_]
    """[groups, sums]: sums without a product."""
    loads: int


def streams(template: Marked, skeleton: Skeleton, bits: NDArray[np.uint32], nonzero: NDArray[np.bool_]) -> Streams:
    """The streams of weights [groups, chunks, slots]: their bits, and which count."""
    groups, chunks, slots = nonzero.shape
    segments = groups * chunks
    segment, place = np.nonzero(nonzero[:, :, template.order].reshape(segments, slots))
    slot = template.order[place]
    count = len(slot)
    if not count:
        none = np.zeros(segments, dtype=np.int64)
        return Streams(np.zeros((0, 2), dtype=np.uint64), none, np.ones((groups, len(template.sums)), np.bool_), 0)
    value = bits.reshape(segments, slots)[segment, slot].astype(np.int64)
    load, element, number = template.slot_load[slot], template.slot_element[slot], template.slot_sum[slot]

    # A load for each run of multiply-adds with the words of one load of the template.
    begins = np.ones(count, dtype=np.bool_)
    begins[1:] = (load[1:] != load[:-1]) | (segment[1:] != segment[:-1])
    run = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    start, width = _narrowed(np.bitwise_or.reduceat(1 << element, first), template.load_words[load[first]])
    position = _positions(segment[first], segments)
    in_bank = skeleton.ring.shape[1] // BANKS
    turn, lane = position // in_bank, position % in_bank
    chunk = segment[first] % chunks
    register = skeleton.ring[chunk, turn % BANKS * in_bank + lane]
    scoreboard = FIRST_SCOREBOARD + turn % SCOREBOARDS_USED
    before, leads = _places(segment[first], turn, lane, first, count, in_bank)

    loads = len(first)
    at_fma = np.arange(count) + np.searchsorted(before, np.arange(count), side="right")
    at_load = before + np.arange(loads)
    total = count + loads
    pointer = template.load_pointer[load[first]]
    offset = skeleton.offsets[chunk, pointer] + template.load_offset[load[first]] + 4 * start
    sum_register = skeleton.sums[number]
    multiplicand = register[run] + element - start[run]
    is_first = _firsts(segment // chunks * len(template.sums) + number, groups * len(template.sums))
    addend = np.where(is_first, ZERO_REGISTER, sum_register)

    low, high = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    low[at_fma] = _FMA | sum_register << 16 | multiplicand << 24 | value << 32
    high[at_fma] = addend
    low[at_load] = _LOAD | register << 16 | skeleton.pointers[chunk, pointer] << 24 | (offset & 0xFFFFFF) << 40
    high[at_load] = _LOAD_SIZES[width] << 9

    result, addition, source = (np.full(total, -1 - i, dtype=np.int64) for i in range(3))
    result[at_fma], addition[at_fma], source[at_fma] = sum_register, addend, multiplicand
    waits, sets = np.zeros(total, dtype=np.int64), np.full(total, NO_SCOREBOARD, dtype=np.int64)
    waits[at_fma[first[leads]]] = 1 << scoreboard[leads]
    sets[at_load] = scoreboard
    stall = np.ones(total, dtype=np.int64)
    for distance in range(1, FMA_CYCLES):
        depends = np.flatnonzero(result[:-distance] == addition[distance:])
        stall[depends] = np.maximum(stall[depends], FMA_CYCLES + 1 - distance)
    settles = np.flatnonzero((waits[1:] >> np.minimum(sets[:-1], word.SCOREBOARDS)) & 1)
    stall[settles] = np.maximum(stall[settles], SETTLE_CYCLES)
    last = at_fma[np.append(segment[1:] != segment[:-1], True)]
    stall[last] = np.maximum(stall[last], RESULT_CYCLES)
    reuse = np.zeros(total, dtype=np.int64)
    reuse[:-1] = (source[:-1] == source[1:]) & (source[1:] >= 0)
    reuse[last] = 0
    high |= control(stall, sets, waits, reuse)
    by_segment = np.bincount(segment, minlength=segments) + np.bincount(segment[first], minlength=segments)
    touched = np.zeros(groups * len(template.sums), dtype=np.bool_)
    touched[segment // chunks * len(template.sums) + number] = True
    return Streams(
        words=np.stack([low.view(np.uint64), high.view(np.uint64)], axis=1),
        ends=np.cumsum(by_segment),
        untouched=~touched.reshape(groups, -1),
        loads=loads,
    )


def zeroes(registers: NDArray[np.int64]) -> Words:
    """[registers]: instructions that make each register zero."""
    low = _FMA | registers << 16 | ZERO_REGISTER << 24
    none = np.zeros(len(registers), dtype=np.int64)
    high = ZERO_REGISTER | control(none + RESULT_CYCLES, none + NO_SCOREBOARD, none, none)
    return np.stack([low.view(np.uint64), high.view(np.uint64)], axis=1)


def control(
    stall: NDArray[np.int64], sets: NDArray[np.int64], waits: NDArray[np.int64], reuse: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[instructions]: the scheduling bits, as they lie in the upper half of a word."""
    fields = ((word.STALL, stall), (word.YIELD, stall < 3), (word.WRITE_SCOREBOARD, sets), (word.WAIT, waits))
    high = np.full(len(stall), NO_SCOREBOARD << word.READ_SCOREBOARD.first - 64, dtype=np.int64)
    for field, value in (*fields, (word.REUSE, reuse)):
        high |= np.asarray(value, dtype=np.int64) << (field.first - 64)
    return high


def _narrowed(used: NDArray[np.int64], words: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each load the first word and the number of words that cover those in use, as an aligned 1, 2 or 4."""
    start, width = np.zeros(16, dtype=np.int64), np.full(16, 4, dtype=np.int64)
    for mask in range(1, 16):
        lowest, highest = (mask & -mask).bit_length() - 1, mask.bit_length() - 1
        if lowest == highest:
            start[mask], width[mask] = lowest, 1
        elif lowest // 2 == highest // 2:
            start[mask], width[mask] = lowest // 2 * 2, 2
    return start[used], np.minimum(width[used], words)


def _positions(segment: NDArray[np.int64], segments: int) -> NDArray[np.int64]:
    """Of each load its number within its segment."""
    begins = np.searchsorted(segment, np.arange(segments))
    return np.arange(len(segment)) - begins[segment]


def _places(
    segment: NDArray[np.int64],
    turn: NDArray[np.int64],
    lane: NDArray[np.int64],
    first: NDArray[np.int64],
    count: int,
    in_bank: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each load the multiply-add before which it goes; and which loads are the first of their turn.

    The first turns' loads go to the head of the segment. A later turn's bank is free when the turn that had it is
    over: its loads are spread over the multiply-adds of the next one.
    """
    new = np.ones(len(segment), dtype=np.bool_)
    new[1:] = (turn[1:] != turn[:-1]) | (segment[1:] != segment[:-1])
    leads = np.flatnonzero(new)
    number = np.cumsum(new) - 1
    begins = np.append(first[leads], count)
    ahead = np.minimum(turn, BANKS - 1)
    phase = number - ahead
    length = begins[phase + 1] - begins[phase]
    return begins[phase] + np.where(turn < BANKS, 0, length * lane // in_bank), leads


def _firsts(keys: NDArray[np.int64], distinct: int) -> NDArray[np.bool_]:
    """Whether each key, of so many, comes for the first time."""
    first = np.full(distinct, -1, dtype=np.int64)
    first[keys[::-1]] = np.arange(len(keys))[::-1]
    result = np.zeros(len(keys), dtype=np.bool_)
    result[first[first >= 0]] = True
    return result
