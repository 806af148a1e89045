"""Non-zero weights -> the loads and multiply-adds of every chunk of every K group, as words.

Multiply-adds come in the template's order, and so with every sum's products in the order that the rewriter leaves. An
input is loaded as soon as its place in the ring is free: the ring has four banks, each has a scoreboard of its own that
the first multiply-add of its inputs waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codegen.sass.assemble.early_loads import OF_STREAMS
from codegen.sass.assemble.early_stores import PASSES, Finish
from codegen.sass.assemble.fp16 import HALF_FMA, MATRIX_FMA, ZERO_ADDEND, added_up, on_matrix_unit, reused
from codegen.sass.assemble.operand_loads import Products, changes, fetches
from codegen.sass.assemble.overlapped_chunks import Between, Inserted, Places
from codegen.sass.assemble.scheduling_bits import RESULT_CYCLES, SETTLE_CYCLES, control
from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import NO_SCOREBOARD, ZERO_REGISTER, Words
from codegen.sass.isa.opcodes import FFMA_IMMEDIATE, LDS, UNIFORM_ADDRESS
from codegen.sass.skeleton.marker_ptx import Marked
from codegen.sass.skeleton.reader import Skeleton

MOST_LOADS = 0.25
"""How many there may be for a multiply-add where the last chunk is in passes, which need more: while a multiprocessor
loads for one warp it can multiply and add for four."""
FMA_CYCLES = 4
"""From a multiply-add to one that adds to its result."""
_FMA = FFMA_IMMEDIATE | encoding.ALWAYS << 12
_LOAD = LDS | encoding.ALWAYS << 12
_UNIFORM_ADDRESS = 1 << UNIFORM_ADDRESS.first - 64


@dataclass(frozen=True, eq=False)
class Streams:
    """All chunks of all K groups of a kernel."""

    words: Words
    ends: NDArray[np.int64]
    """[groups * chunks]: where each ends in `words`; a group's chunks follow each other."""
    untouched: NDArray[np.bool_]
    """[groups, sums]: sums without a product."""
    loads: int
    inserted: Inserted | None = None
    """Where the words between chunks go, if the streams run on."""
    in_passes: bool = False
    """Whether the last chunk is in passes, and `inserted` has the words that finish sums amid it."""


def streams(
    template: Marked,
    skeleton: Skeleton,
    bits: NDArray[np.uint32],
    nonzero: NDArray[np.bool_],
    added: NDArray[np.bool_],
    bounds: NDArray[np.float32],
    between: Between | None = None,
    finish: Finish | None = None,
    scoreboards: Sequence[int] = OF_STREAMS,
) -> Streams:
    """The streams of weights [groups, chunks, slots]: their bits, and which count.

    They run on from chunk to chunk over the words `between`, if every chunk has a product, and then finish sums amid
    the last chunk, where that needs few more loads.

    `added` [groups, chunks, sums] says after which chunks a packed sum is added to those of float32, `bounds` [groups,
    chunks, inputs, 2] what inputs are no lower and no higher than.
    """
    groups, chunks, slots = nonzero.shape
    sums = len(template.sums.registers)
    segments = groups * chunks
    segment, place = np.nonzero(nonzero[:, :, template.order].reshape(segments, slots))
    slot = template.order[place]
    count = len(slot)
    if not count:
        none = np.zeros(segments, dtype=np.int64)
        return Streams(np.zeros((0, 2), dtype=np.uint64), none, np.ones((groups, sums), np.bool_), 0)
    value = bits.reshape(segments, slots)[segment, slot].astype(np.int64)
    number = template.slot_sum[slot]
    chunk = segment % chunks
    runs_on = between is not None and len(np.unique(segment)) == segments
    passes = np.where(chunk == chunks - 1, finish.pass_of_sum[number], 0) if finish is not None and runs_on else None
    if passes is not None:
        order = np.argsort(segment * PASSES + passes, kind="stable")
        if changes(template.slot_load[slot[order]], segment).sum() <= MOST_LOADS * count:
            slot, value, number, passes = slot[order], value[order], number[order], passes[order]
        else:
            passes = None
    products = Products(segment, slot, chunk, bounds.reshape(segments, bounds.shape[2], 2))
    fetched = fetches(template, skeleton, products, scoreboards, running=runs_on)
    prepared, placed = fetched.prepared, None
    if between is not None and runs_on:
        placed = Places.of(fetched, between, chunks, count + len(prepared))
        if finish is not None and passes is not None:
            last_chunk = np.arange(1, groups + 1)[:, np.newaxis] * chunks - 1
            ends = np.searchsorted(segment * PASSES + passes, last_chunk * PASSES + np.arange(PASSES), side="right")
            placed = placed.finishing(finish, prepared.begun(ends))
        fetched = replace(fetched, before=placed.before)

    # Operations are the multiply-adds, and what prepares their inputs.
    loads, operations = len(fetched.before), count + len(prepared)
    at_operation = np.arange(operations) + np.searchsorted(fetched.before, np.arange(operations), side="right")
    at_fma, at_prepared = at_operation[prepared.multiply_adds(count)], at_operation[prepared.operations]
    at_load = fetched.before + np.arange(loads)
    total = operations + loads
    pointer, chunk = fetched.pointer, fetched.segment % chunks
    offset = skeleton.offsets[chunk, pointer] + fetched.offset
    sum_register = skeleton.sums[number]
    multiplicand = fetched.multiplicand
    # After a packed sum has been added to those of float32, it begins again.
    begun: NDArray[np.int64] = np.cumsum(added, axis=1) - added
    turn_of_sum = begun.reshape(segments, sums)[segment, number]
    is_first = _firsts((segment // chunks * (chunks + 1) + turn_of_sum) * sums + number, groups * (chunks + 1) * sums)
    addend = np.where(is_first, ZERO_REGISTER, sum_register)

    low, high = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    low[at_fma] = _FMA | sum_register << 16 | multiplicand << 24 | value << 32
    high[at_fma] = addend
    low[at_prepared], high[at_prepared] = prepared.low, prepared.high
    low[at_load] = _LOAD | fetched.register << 16 | skeleton.pointers[chunk, pointer] << 24 | (offset & 0xFFFFFF) << 40
    high[at_load] = encoding.SIZE_OF_REGISTERS[fetched.words] << 9
    uniform = np.where(pointer == 0, skeleton.uniform[chunk], -1)
    low[at_load] |= np.where(uniform < 0, 0, uniform << 32)
    high[at_load] |= np.where(uniform < 0, 0, _UNIFORM_ADDRESS)

    result, addition, source = (np.full(total, -1 - i, dtype=np.int64) for i in range(3))
    result[at_fma], addition[at_fma], source[at_fma] = sum_register, addend, multiplicand
    result[at_prepared] = source[at_prepared] = prepared.register
    waits, sets = np.zeros(total, dtype=np.int64), np.full(total, NO_SCOREBOARD, dtype=np.int64)
    waits[at_operation[fetched.users]] = 1 << fetched.scoreboard[fetched.leads]
    sets[at_load] = fetched.scoreboard
    ended = segment // chunks if placed is not None else segment
    last = at_fma[np.append(ended[1:] != ended[:-1], True)]
    reuse = np.zeros(total, dtype=np.int64)
    if template.sums.packed:
        matrix = on_matrix_unit(result, addition, last)[at_fma]
        low[at_fma] += np.where(matrix, MATRIX_FMA, HALF_FMA) - _FMA
        high[at_fma] |= np.where(is_first & ~matrix, ZERO_ADDEND, 0)
        reuse[at_fma] = reused(matrix, fetched.run, template.slot_element[slot])
    else:
        # An input is kept over a load too, but not over what prepares another.
        parted = np.zeros(count, dtype=np.bool_)
        parted[prepared.before] = True
        kept = (multiplicand[:-1] == multiplicand[1:]) & (fetched.run[:-1] == fetched.run[1:])
        reuse[at_fma[:-1]] = kept & ~parted[1:]
    stall = np.ones(total, dtype=np.int64)
    for distance in range(1, FMA_CYCLES):
        depends = np.flatnonzero(result[:-distance] == addition[distance:])
        stall[depends] = np.maximum(stall[depends], FMA_CYCLES + 1 - distance)
    for distance in range(1, prepared.cycles):
        depends = np.flatnonzero(result[:-distance] == source[distance:])
        stall[depends] = np.maximum(stall[depends], prepared.cycles + 1 - distance)
    neighbours = at_prepared[:-1][np.diff(at_prepared) == 1]
    stall[neighbours] = np.maximum(stall[neighbours], prepared.apart)
    settles = np.flatnonzero((waits[1:] >> np.minimum(sets[:-1], encoding.SCOREBOARDS)) & 1)
    stall[settles] = np.maximum(stall[settles], SETTLE_CYCLES)
    stall[last] = np.maximum(stall[last], RESULT_CYCLES)
    reuse[last] = 0
    if between is not None and placed is not None:
        waits[at_load[placed.first]] |= np.tile(between.entry_waits, groups)
        reuse[at_fma[np.searchsorted(at_fma, placed.between.ravel()) - 1]] = 0
        _make_room(placed, between, stall, sets)
    high |= control(stall, sets, waits, reuse)
    by_segment = np.bincount(segment, minlength=segments) + np.bincount(fetched.segment, minlength=segments)
    by_segment += np.bincount(segment[prepared.before], minlength=segments)
    touched = np.zeros(groups * sums, dtype=np.bool_)
    touched[segment // chunks * sums + number] = True
    words = np.stack([low.view(np.uint64), high.view(np.uint64)], axis=1)
    words, ends = _with_additions(words, np.cumsum(by_segment), skeleton, added, begun == 0)
    return Streams(
        words=words,
        ends=ends,
        untouched=~touched.reshape(groups, -1),
        loads=loads,
        inserted=None if placed is None else placed.inserted(np.append(0, ends)[:-1:chunks]),
        in_passes=passes is not None,
    )


def _make_room(placed: Places, between: Between, stall: NDArray[np.int64], sets: NDArray[np.int64]) -> None:
    """Stalls of what comes before the words between chunks, in place."""
    loads = placed.between[sets[placed.between - 1] != NO_SCOREBOARD] - 1
    stall[loads] = np.maximum(stall[loads], SETTLE_CYCLES)
    words = len(between.chunk)
    at, following = placed.between[:, :words], placed.following[:, :words]
    followed = following > at
    ends = following[followed] - 1
    missing = np.broadcast_to(between.stall - between.least + 1, followed.shape) - (following - at)
    stall[ends] = np.maximum(stall[ends], missing[followed])


def zeroes(registers: NDArray[np.int64]) -> Words:
    """[registers]: instructions that make each register zero."""
    low = _FMA | registers << 16 | ZERO_REGISTER << 24
    none = np.zeros(len(registers), dtype=np.int64)
    stalls = none + 1
    stalls[-1:] = RESULT_CYCLES
    high = ZERO_REGISTER | control(stalls, none + NO_SCOREBOARD, none, none)
    return np.stack([low.view(np.uint64), high.view(np.uint64)], axis=1)


def _with_additions(
    words: Words, ends: NDArray[np.int64], skeleton: Skeleton, added: NDArray[np.bool_], first: NDArray[np.bool_]
) -> tuple[Words, NDArray[np.int64]]:
    """The streams that end at `ends`, with packed sums added to those of float32 at the end of chunks."""
    pieces, done = [], 0
    longer = np.zeros(len(ends), dtype=np.int64)
    groups, chunks = np.nonzero(added.any(axis=2))
    for group, chunk in zip(groups.tolist(), chunks.tolist(), strict=True):
        which = np.flatnonzero(added[group, chunk])
        number = group * added.shape[1] + chunk
        more = added_up(
            skeleton.sums[which], skeleton.wide[which], first[group, chunk, which], skeleton.free_registers(chunk)
        )
        pieces += [words[done : ends[number]], more]
        done, longer[number] = ends[number], len(more)
    return np.concatenate([*pieces, words[done:]]), ends + np.cumsum(longer)


def _firsts(keys: NDArray[np.int64], distinct: int) -> NDArray[np.bool_]:
    """Whether each key, of so many, comes for the first time."""
    first = np.full(distinct, -1, dtype=np.int64)
    first[keys[::-1]] = np.arange(len(keys))[::-1]
    result = np.zeros(len(keys), dtype=np.bool_)
    result[first[first >= 0]] = True
    return result
