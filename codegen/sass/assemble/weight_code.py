"""Weight code: the loads and multiply-adds of every chunk of every K group, for the non-zero weights, as words.

Multiply-adds come in the template's order, so every accumulator has its products in the order of the rewritten PTX. An
input is loaded as soon as its place in the operand ring is free. The ring has four banks; each has a scoreboard, which
the first multiply-add of its inputs waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codegen.sass.assemble.early_stores import PASSES, EarlyStores
from codegen.sass.assemble.fp16 import HALF_FMA, MATRIX_FMA, ZERO_ADDEND, added_up, on_matrix_unit, reused
from codegen.sass.assemble.group_body import GroupBody
from codegen.sass.assemble.operand_loads import OperandLoads, Products, changes, operand_loads
from codegen.sass.assemble.overlapped_chunks import GapWords, InsertedWords, Placement
from codegen.sass.assemble.scheduling import control, result_cycles
from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import NO_SCOREBOARD, ZERO_REGISTER, Words
from codegen.sass.isa.latencies import RELOAD_CYCLES, SETTLING_CYCLES, Latencies
from codegen.sass.isa.opcodes import FFMA_IMMEDIATE, LDS, UNIFORM_ADDRESS
from codegen.sass.skeleton.reader import Skeleton

MOST_LOADS = 0.25
"""Most loads for a multiply-add with early stores, whose passes load inputs again.

While a multiprocessor loads for one warp it can multiply and add for four.
"""
_FMA = FFMA_IMMEDIATE | encoding.ALWAYS << 12
_LOAD = LDS | encoding.ALWAYS << 12
_UNIFORM_ADDRESS = 1 << UNIFORM_ADDRESS.first - 64


@dataclass(frozen=True, eq=False)
class ChunkWeights:
    """The weights of a kernel's K groups, chunk by chunk."""

    patterns: NDArray[np.uint32]
    """[groups, chunks, slots]: bits."""
    nonzero: NDArray[np.bool_]
    """[groups, chunks, slots]"""
    added: NDArray[np.bool_]
    """[groups, chunks, accumulators]: whether a packed one is added to its float32 ones after the chunk."""
    bounds: NDArray[np.float32]
    """[groups, chunks, inputs, 2]: lowest and highest value; no inputs without bounds."""


@dataclass(frozen=True, eq=False)
class WeightCode:
    """The weight code of all chunks of all K groups of a kernel."""

    words: Words
    ends: NDArray[np.int64]
    """[groups * chunks]: where each chunk ends in `words`; a group's chunks follow each other."""
    untouched: NDArray[np.bool_]
    """[groups, accumulators]: whether an accumulator has no product."""
    inserted: InsertedWords | None = None
    """Words between chunks with their places, if chunks overlap."""
    stores_early: bool = False
    """Whether `inserted` also has the words of early stores."""

    @staticmethod
    def of(skeleton: Skeleton, body: GroupBody, weights: ChunkWeights) -> WeightCode:
        """The weight code for a skeleton.

        Chunks overlap across the body's gap words if every chunk of every group has a product. Outputs are then stored
        early, if that needs few more loads.
        """
        plan = _Plan.of(skeleton, body, weights)
        if plan is None:
            groups, chunks, accumulators = weights.added.shape
            ends, untouched = np.zeros(groups * chunks, dtype=np.int64), np.ones((groups, accumulators), dtype=np.bool_)
            return WeightCode(np.zeros((0, 2), dtype=np.uint64), ends, untouched)
        code = _Instructions.empty(len(plan.at_fma) + len(plan.at_transform) + len(plan.at_load))
        _emit_multiply_adds(code, plan, skeleton)
        _emit_transforms(code, plan)
        _emit_loads(code, plan, skeleton)
        _set_waits(code, plan)
        if skeleton.template.accumulators.packed:
            _choose_fp16_units(code, plan, skeleton)
        else:
            _set_reuse(code, plan)
        _set_stalls(code, plan, skeleton)
        if plan.gap is not None and plan.placement is not None:
            _make_room(code, plan, plan.gap, plan.placement)
        words, ends = _with_additions(code.words(), plan.ends(), skeleton, weights.added)
        return WeightCode(
            words=words,
            ends=ends,
            untouched=plan.untouched(weights.added.shape[2]),
            inserted=None
            if plan.placement is None
            else plan.placement.inserted(np.append(0, ends)[: -1 : plan.chunks]),
            stores_early=plan.stores_early,
        )


@dataclass(frozen=True, eq=False)
class _Plan:
    """The products and loads of the weight code, and the place of each instruction in it."""

    groups: int
    chunks: int
    products: Products
    accumulator: NDArray[np.int64]
    """[products]: number of the accumulator."""
    pattern: NDArray[np.int64]
    """[products]: bits of the weight."""
    is_first: NDArray[np.bool_]
    """[products]: whether the accumulator begins with this product."""
    loads: OperandLoads
    at_fma: NDArray[np.int64]
    """[products]: place of the multiply-add."""
    at_transform: NDArray[np.int64]
    """[words of the input transform]: place."""
    at_load: NDArray[np.int64]
    """[loads]: place."""
    at_user: NDArray[np.int64]
    """[turns]: place of the operation that waits for the loads of each turn."""
    gap: GapWords | None
    placement: Placement | None
    """Places of loads and gap words; None if chunks do not overlap."""
    stores_early: bool

    @staticmethod
    def of(skeleton: Skeleton, body: GroupBody, weights: ChunkWeights) -> _Plan | None:
        """None without a non-zero weight."""
        template = skeleton.template
        groups, chunks, slots = weights.nonzero.shape
        segments = groups * chunks
        segment, place = np.nonzero(weights.nonzero[:, :, template.order].reshape(segments, slots))
        slot = template.order[place]
        count = len(slot)
        if not count:
            return None
        gap = body.gap if body.gap is not None and len(np.unique(segment)) == segments else None
        order = passes = None
        if body.early_stores is not None and gap is not None:
            order, passes = _in_passes(body.early_stores, chunks, segment, template.slot_accumulator[slot])
            if changes(template.slot_load[slot[order]], segment).sum() > MOST_LOADS * count:
                order = passes = None
        slot = slot if order is None else slot[order]
        bounds = weights.bounds.reshape(segments, weights.bounds.shape[2], 2)
        products = Products(segment, slot, segment % chunks, bounds)
        loads = operand_loads(template, skeleton, products, body.scoreboards, overlapped=gap is not None)
        transform, placement = loads.transform, None
        if gap is not None:
            placement = Placement.of(loads, gap, chunks, count + len(transform))
            if body.early_stores is not None and passes is not None:
                last_chunk = np.arange(1, groups + 1)[:, np.newaxis] * chunks - 1
                numbered = segment * PASSES + passes
                ends = np.searchsorted(numbered, last_chunk * PASSES + np.arange(PASSES), side="right")
                placement = placement.with_early_stores(body.early_stores, transform.begun(ends))
            loads = replace(loads, before=placement.before)
        operations = np.arange(count + len(transform))
        at_operation = operations + np.searchsorted(loads.before, operations, side="right")
        accumulator = template.slot_accumulator[slot]
        return _Plan(
            groups=groups,
            chunks=chunks,
            products=products,
            accumulator=accumulator,
            pattern=weights.patterns.reshape(segments, slots)[segment, slot].astype(np.int64),
            is_first=_begins(weights.added, segment, accumulator),
            loads=loads,
            at_fma=at_operation[transform.multiply_adds(count)],
            at_transform=at_operation[transform.operations],
            at_load=loads.before + np.arange(len(loads.before)),
            at_user=at_operation[loads.users],
            gap=gap,
            placement=placement,
            stores_early=passes is not None,
        )

    @property
    def at_last(self) -> NDArray[np.int64]:
        """Places of the multiply-adds that something else than weight code follows: the last of each chunk or group."""
        ended = self.products.segment // (self.chunks if self.placement is not None else 1)
        last: NDArray[np.int64] = self.at_fma[np.append(ended[1:] != ended[:-1], True)]
        return last

    def ends(self) -> NDArray[np.int64]:
        """[groups * chunks]: number of instructions up to the end of each chunk."""
        segment, segments = self.products.segment, self.groups * self.chunks
        by_segment = np.bincount(segment, minlength=segments) + np.bincount(self.loads.segment, minlength=segments)
        by_segment += np.bincount(segment[self.loads.transform.before], minlength=segments)
        ends: NDArray[np.int64] = np.cumsum(by_segment)
        return ends

    def untouched(self, accumulators: int) -> NDArray[np.bool_]:
        """[groups, accumulators]: whether an accumulator has no product."""
        touched = np.zeros(self.groups * accumulators, dtype=np.bool_)
        touched[self.products.segment // self.chunks * accumulators + self.accumulator] = True
        return ~touched.reshape(self.groups, -1)


def _in_passes(
    early: EarlyStores, chunks: int, segment: NDArray[np.int64], accumulator: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order of products with the last chunk in passes, and the pass of each product in this order."""
    passes = np.where(segment % chunks == chunks - 1, early.pass_of_accumulator[accumulator], 0)
    order = np.argsort(segment * PASSES + passes, kind="stable")
    return order, passes[order]


def _begins(added: NDArray[np.bool_], segment: NDArray[np.int64], accumulator: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[products]: whether an accumulator begins with this product: at first, and after it was added to float32 ones."""
    groups, chunks, accumulators = added.shape
    begun = _times_added(added).reshape(groups * chunks, accumulators)[segment, accumulator]
    keys = (segment // chunks * (chunks + 1) + begun) * accumulators + accumulator
    return _firsts(keys, groups * (chunks + 1) * accumulators)


def _times_added(added: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[groups, chunks, accumulators]: how often an accumulator was added to float32 ones before each chunk."""
    times: NDArray[np.int64] = np.cumsum(added, axis=1) - added
    return times


@dataclass(eq=False)
class _Instructions:
    """Instructions [instructions] that the passes fill in, in place."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    """The halves of the word, without scheduling bits."""
    result: NDArray[np.int64]
    addend: NDArray[np.int64]
    multiplicand: NDArray[np.int64]
    """Registers; where an instruction has none, a negative number that no other has."""
    waits: NDArray[np.int64]
    sets: NDArray[np.int64]
    stall: NDArray[np.int64]
    reuse: NDArray[np.int64]

    @staticmethod
    def empty(count: int) -> _Instructions:
        low, high, waits, reuse = np.zeros((4, count), dtype=np.int64)
        result, addend, multiplicand = (np.full(count, -1 - i, dtype=np.int64) for i in range(3))
        sets = np.full(count, NO_SCOREBOARD, dtype=np.int64)
        return _Instructions(low, high, result, addend, multiplicand, waits, sets, np.ones_like(low), reuse)

    def words(self) -> Words:
        high = self.high | control(self.stall, self.sets, self.waits, self.reuse)
        return np.stack([self.low.view(np.uint64), high.view(np.uint64)], axis=1)


def _emit_multiply_adds(code: _Instructions, plan: _Plan, skeleton: Skeleton) -> None:
    at, register, multiplicand = plan.at_fma, skeleton.accumulators[plan.accumulator], plan.loads.multiplicand
    addend = np.where(plan.is_first, ZERO_REGISTER, register)
    code.low[at] = _FMA | register << 16 | multiplicand << 24 | plan.pattern << 32
    code.high[at] = addend
    code.result[at], code.addend[at], code.multiplicand[at] = register, addend, multiplicand


def _emit_transforms(code: _Instructions, plan: _Plan) -> None:
    at, transform = plan.at_transform, plan.loads.transform
    code.low[at], code.high[at] = transform.low, transform.high
    code.result[at] = code.multiplicand[at] = transform.register


def _emit_loads(code: _Instructions, plan: _Plan, skeleton: Skeleton) -> None:
    at, loads = plan.at_load, plan.loads
    pointer, chunk = loads.pointer, loads.segment % plan.chunks
    offset = skeleton.offsets[chunk, pointer] + loads.offset
    low = _LOAD | loads.register << 16 | skeleton.pointers[chunk, pointer] << 24 | (offset & 0xFFFFFF) << 40
    high = encoding.SIZE_OF_REGISTERS[loads.words] << 9 | skeleton.architecture.loads.shared
    uniform = np.where(pointer == 0, skeleton.uniform[chunk], -1)
    code.low[at] = low | np.where(uniform < 0, 0, uniform << 32)
    high |= np.where(pointer == 0, skeleton.scale[chunk], 0) << encoding.SCALE.first - 64
    code.high[at] = high | np.where(uniform < 0, 0, _UNIFORM_ADDRESS)
    code.sets[at] = loads.scoreboard


def _set_waits(code: _Instructions, plan: _Plan) -> None:
    """The first user of a turn's inputs waits for their loads."""
    code.waits[plan.at_user] = 1 << plan.loads.scoreboard[plan.loads.leads]


def _choose_fp16_units(code: _Instructions, plan: _Plan, skeleton: Skeleton) -> None:
    """Divides packed multiply-adds between HFMA2 and HFMA2.MMA, and sets the reuse flags of both."""
    at = plan.at_fma
    matrix = on_matrix_unit(code.result, code.addend, plan.at_last, skeleton.architecture)[at]
    code.low[at] += np.where(matrix, MATRIX_FMA, HALF_FMA) - _FMA
    code.high[at] |= np.where(plan.is_first & ~matrix, ZERO_ADDEND, 0)
    code.reuse[at] = reused(matrix, plan.loads.run, skeleton.template.slot_element[plan.products.slot])


def _set_reuse(code: _Instructions, plan: _Plan) -> None:
    """A multiply-add keeps its input for the next one: across a load, but not across a transform of another input."""
    multiplicand, run = plan.loads.multiplicand, plan.loads.run
    parted = np.zeros(len(multiplicand), dtype=np.bool_)
    parted[plan.loads.transform.before] = True
    kept = (multiplicand[:-1] == multiplicand[1:]) & (run[:-1] == run[1:])
    code.reuse[plan.at_fma[:-1]] = kept & ~parted[1:]


def _set_stalls(code: _Instructions, plan: _Plan, skeleton: Skeleton) -> None:
    """Stalls for results that later instructions use, registers that are loaded again, and scoreboards waited for."""
    stall, transform, latencies = code.stall, plan.loads.transform, skeleton.architecture.latencies
    unit = "half" if skeleton.template.accumulators.packed else "fma"
    for cycles, operand in ((latencies.between(unit, unit), code.addend), (transform.cycles, code.multiplicand)):
        for distance in range(1, cycles):
            depends = np.flatnonzero(code.result[:-distance] == operand[distance:])
            stall[depends] = np.maximum(stall[depends], cycles + 1 - distance)
    neighbours = plan.at_transform[:-1][np.diff(plan.at_transform) == 1]
    stall[neighbours] = np.maximum(stall[neighbours], transform.apart)
    before = plan.at_load[1:] - 1
    read = code.multiplicand[before] - plan.loads.register[1:]
    reloaded = before[(read >= 0) & (read < plan.loads.words[1:])]
    stall[reloaded] = np.maximum(stall[reloaded], RELOAD_CYCLES)
    settles = np.flatnonzero((code.waits[1:] >> np.minimum(code.sets[:-1], encoding.SCOREBOARDS)) & 1)
    stall[settles] = np.maximum(stall[settles], SETTLING_CYCLES)
    stall[plan.at_last] = np.maximum(stall[plan.at_last], result_cycles(latencies))
    code.reuse[plan.at_last] = 0


def _make_room(code: _Instructions, plan: _Plan, gap: GapWords, placement: Placement) -> None:
    """Waits, stalls and reuse flags of instructions next to inserted words."""
    code.waits[plan.at_load[placement.first]] |= np.tile(gap.entry_waits, plan.groups)
    code.reuse[plan.at_fma[np.searchsorted(plan.at_fma, placement.between.ravel()) - 1]] = 0
    stall = code.stall
    loads = placement.between[code.sets[placement.between - 1] != NO_SCOREBOARD] - 1
    stall[loads] = np.maximum(stall[loads], SETTLING_CYCLES)
    words = len(gap.chunk)
    at, following = placement.between[:, :words], placement.following[:, :words]
    followed = following > at
    ends = following[followed] - 1
    missing = np.broadcast_to(gap.stall - gap.least + 1, followed.shape) - (following - at)
    stall[ends] = np.maximum(stall[ends], missing[followed])


def zeroes(registers: NDArray[np.int64], latencies: Latencies) -> Words:
    """[registers]: instructions that set each register to zero."""
    low = _FMA | registers << 16 | ZERO_REGISTER << 24
    none = np.zeros(len(registers), dtype=np.int64)
    stalls = none + 1
    stalls[-1:] = result_cycles(latencies)
    high = ZERO_REGISTER | control(stalls, none + NO_SCOREBOARD, none, none)
    return np.stack([low.view(np.uint64), high.view(np.uint64)], axis=1)


def _with_additions(
    words: Words, ends: NDArray[np.int64], skeleton: Skeleton, added: NDArray[np.bool_]
) -> tuple[Words, NDArray[np.int64]]:
    """The chunks that end at `ends`, with packed accumulators added to float32 ones at the end of chunks."""
    pieces, done, latencies = [], 0, skeleton.architecture.latencies
    longer = np.zeros(len(ends), dtype=np.int64)
    first = _times_added(added) == 0
    groups, chunks = np.nonzero(added.any(axis=2))
    for group, chunk in zip(groups.tolist(), chunks.tolist(), strict=True):
        which = np.flatnonzero(added[group, chunk])
        number = group * added.shape[1] + chunk
        packed, wide = skeleton.accumulators[which], skeleton.wide[which]
        more = added_up(packed, wide, first[group, chunk, which], skeleton.free_registers(chunk), latencies)
        pieces += [words[done : ends[number]], more]
        done, longer[number] = ends[number], len(more)
    return np.concatenate([*pieces, words[done:]]), ends + np.cumsum(longer)


def _firsts(keys: NDArray[np.int64], distinct: int) -> NDArray[np.bool_]:
    """[keys]: whether each occurs for the first time; keys are less than `distinct`."""
    first = np.full(distinct, -1, dtype=np.int64)
    first[keys[::-1]] = np.arange(len(keys))[::-1]
    result = np.zeros(len(keys), dtype=np.bool_)
    result[first[first >= 0]] = True
    return result
