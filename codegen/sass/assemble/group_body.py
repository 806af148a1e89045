"""Group body: the code that every K group runs around its weight code; a skeleton's body without its markers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from codegen.sass.assemble.early_stores import EarlyStores
from codegen.sass.assemble.overlapped_chunks import GapWords
from codegen.sass.assemble.scheduling import MOST_STALL, control, passed_by, settle
from codegen.sass.assemble.scoreboards import MOVES, WEIGHT_CODE, restore_copies, separate_early_loads
from codegen.sass.isa import encoding
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import NO_SCOREBOARD, Words
from codegen.sass.isa.latencies import SETTLING_CYCLES
from codegen.sass.isa.opcodes import BRA, FADD_IMMEDIATE, MOV, MOV_IMMEDIATE, PREDICATES, UNIFORM_REGISTERS
from codegen.sass.isa.operands import Operands, operands
from codegen.sass.skeleton.epilogue_code import put_zero_for
from codegen.sass.skeleton.reader import CONTROL, Skeleton
from codegen.sass.verify.program import Program

_ALL_LANES = 0xF00
ZERO_CYCLES = 6
"""From a MOV to any use of its result."""


@dataclass(frozen=True, eq=False)
class GroupBody:
    """A skeleton's body without its markers."""

    words: Words
    cuts: NDArray[np.int64]
    """[chunks]: the word before which the weight code of each chunk goes."""
    entry_waits: NDArray[np.int64]
    """[chunks]: scoreboards that the first instruction of each chunk waits for."""
    place: NDArray[np.int64]
    """[words of the skeleton's body + 1]: place of each word, or of the one that follows it, without weight code."""
    gap: GapWords | None
    """The words between chunks, if chunks can overlap."""
    early_stores: EarlyStores | None
    """The words behind the last chunk with early stores, if outputs can be stored early."""
    entry_stall: int
    """Stall of the comparison before the first word."""
    scoreboards: tuple[int, ...]
    """Scoreboards for the loads of the weight code."""

    @staticmethod
    def of(skeleton: Skeleton, words: Words, head: Words) -> GroupBody:
        """Leaves the markers out: the next word takes over their waits, the word before them their stalls."""
        start, end = skeleton.branch + 1, skeleton.body_end
        words = words[start:end].copy()
        gone = skeleton.markers[start:end]
        _put_epilogue(words, skeleton, start)
        restore_copies(words, skeleton.copies - start, skeleton.zeroed - start, skeleton.copy_order)
        architecture = skeleton.architecture
        stalls, waits, reuse = (field.get(words) for field in (encoding.STALL, encoding.WAIT, encoding.REUSE))
        splices = {place - start: chunk for chunk, place in enumerate(skeleton.splices.tolist())}
        entry = np.zeros(len(splices), dtype=np.int64)
        last_kept, pending = -1, 0
        for place in range(len(words)):
            if place in splices:
                entry[splices[place]] = pending | int(waits[place])  # waits of the marker that names the pointers
                pending = 0
                if last_kept >= 0:
                    reuse[last_kept] = 0
            if gone[place]:
                pending |= int(waits[place])
                if last_kept >= 0:
                    stalls[last_kept] = min(MOST_STALL, int(stalls[last_kept] + stalls[place]))
                    reuse[last_kept] = 0
            else:
                waits[place] |= pending
                last_kept, pending = place, 0
        encoding.YIELD.put(words, np.where(stalls != encoding.STALL.get(words), 0, encoding.YIELD.get(words)))
        encoding.STALL.put(words, stalls)
        encoding.WAIT.put(words, waits)
        encoding.REUSE.put(words, reuse)
        place_of = np.append(0, np.cumsum(~gone))
        own = encoding.STALL.get(skeleton.words[start:end])[~gone]
        words, cuts = words[~gone], place_of[skeleton.splices - start]
        gap = early_stores = None
        scoreboards = separate_early_loads(words, int(cuts[-1]), architecture) if skeleton.overlaps else WEIGHT_CODE
        jumps = place_of[np.stack([skeleton.jumps, skeleton.targets], axis=1) - start]
        branches = encoding.OPCODE.get(skeleton.words[skeleton.jumps]) == BRA
        entry_stall = _shorten(words, own, cuts, jumps[branches], skeleton, head)
        if skeleton.overlaps:
            last = int(cuts[-1])
            gap = GapWords.of(words, cuts, jumps[branches], skeleton.pointers, entry, architecture)
            early_stores = EarlyStores.of(
                words[last:], skeleton.accumulators, _straight_length(words, last, jumps), architecture
            )
        return GroupBody(words, cuts, entry, place_of, gap, early_stores, entry_stall, scoreboards)

    @cached_property
    def with_early_stores(self) -> GroupBody:
        """The body in the word order of early stores."""
        if self.early_stores is None:
            return self
        last, now = int(self.cuts[-1]), np.arange(len(self.words) + 1)
        now[last + self.early_stores.order] = np.arange(last, len(self.words))
        return replace(self, words=np.concatenate([self.words[:last], self.early_stores.words]), place=now[self.place])


def _shorten(
    words: Words,
    own: NDArray[np.int64],
    cuts: NDArray[np.int64],
    jumps: NDArray[np.int64],
    skeleton: Skeleton,
    head: Words,
) -> int:
    """Shortens the stalls taken over from markers to what results need, in place; returns the stall of the comparison.

    These are the words before the last chunk, or before the first one where chunks do not overlap. `own` [words] are
    the stalls without those of markers; `jumps` [branches, 2] are places. A word that a branch may pass keeps its
    stall, and does not count as cycles for a result. Nor do multiply-adds: a K group may have none.
    """
    architecture = skeleton.architecture
    end, entry = int(cuts[-1 if skeleton.overlaps else 0]), len(head)
    cuts = cuts[cuts <= end]
    begin = entry + 1
    inner = np.concatenate([head, skeleton.words[skeleton.compare : skeleton.compare + 1], words])
    passed = passed_by(np.concatenate([_branches(head, architecture), jumps + begin]), len(inner))
    addresses = np.concatenate([skeleton.pointers, UNIFORM_REGISTERS + skeleton.uniform[:, np.newaxis]], axis=1)
    stalls = encoding.STALL.get(inner)
    stalls[entry] = MOST_STALL
    least = np.concatenate([stalls[:entry], [1], own])
    sets = (encoding.WRITE_SCOREBOARD.get(inner) != NO_SCOREBOARD) | (
        encoding.READ_SCOREBOARD.get(inner) != NO_SCOREBOARD
    )
    least[begin:] = np.minimum(np.maximum(least, np.where(sets, SETTLING_CYCLES, 0)), stalls)[begin:]
    least[begin + end :] = stalls[begin + end :]
    of_loads = zip((cuts + begin).tolist(), addresses[: len(cuts)].tolist(), strict=True)
    settle(inner, least, stalls, architecture, passed, of_loads)
    words[:end] = inner[begin : begin + end]
    return int(encoding.STALL.get(inner)[entry])


def head_of(skeleton: Skeleton, words: Words) -> Words:
    """The head with 0 as the number of the first K group."""
    head, architecture = words[: skeleton.branch].copy(), skeleton.architecture
    put_number(head[skeleton.first_group : skeleton.first_group + 1], 0, MOST_STALL)
    stalls = encoding.STALL.get(head)
    least = stalls.copy()
    least[skeleton.first_group] = 1
    settle(head, least, stalls, architecture, passed_by(_branches(head, architecture), len(head)))
    return head


def _branches(words: Words, architecture: Architecture) -> NDArray[np.int64]:
    """[branches, 2]: place and target."""
    return Program(words, np.zeros(0, dtype=np.int64), architecture).branches


def _straight_length(words: Words, begin: int, jumps: NDArray[np.int64]) -> int:
    """Number of words from `begin` on before the first branch or branch target."""
    control = np.isin(encoding.OPCODE.get(words[begin:]), CONTROL)
    control[jumps[jumps >= begin] - begin] = True
    return int(np.argmax(control)) if control.any() else len(control)


def without_marker_scoreboards(skeleton: Skeleton) -> Words:
    """The skeleton's words, with no wait that relies on a marker's scoreboard.

    Loads and stores end in order: ptxas gives one no scoreboard where a later one has a scoreboard that is waited for.
    Where that later one is a marker, the earlier ones get its scoreboard, and the marker's place waits for them.
    """
    words = skeleton.words.copy()
    used = operands(words, skeleton.architecture)
    never = (encoding.PREDICATE.get(words) == encoding.ALWAYS) & (encoding.NEGATED_PREDICATE.get(words) == 1)
    later, gone = used.asynchronous & ~never, skeleton.markers.copy()
    gone[[skeleton.first_group, *skeleton.zeroed.tolist()]] = True
    moved = np.zeros(len(words), dtype=np.bool_)
    if skeleton.moves is not None:
        gone[skeleton.moves.words] = moved[skeleton.moves.words] = True
    using = _using_registers(used)
    has_result = used.per_word(lambda opcode: opcode.result) != 0
    sets, reads = encoding.WRITE_SCOREBOARD.get(words), encoding.READ_SCOREBOARD.get(words)
    bare: list[int] = []
    for place in np.flatnonzero(later[: skeleton.body_end]).tolist():
        board = int(min(sets[place], reads[place]))
        if moved[place] and board == NO_SCOREBOARD:
            board = MOVES
        if not gone[place]:
            if board == NO_SCOREBOARD and place in using:
                bare.append(place)
        elif board != NO_SCOREBOARD and bare:
            for each in bare:
                field = encoding.WRITE_SCOREBOARD if has_result[each] else encoding.READ_SCOREBOARD
                field.put(words[each : each + 1], board)
                encoding.STALL.put(words[each : each + 1], max(SETTLING_CYCLES, int(encoding.STALL.get(words[each]))))
            marker = words[place : place + 1]
            encoding.WAIT.put(marker, encoding.WAIT.get(marker) | 1 << board)
            before = words[place - 1 : place]
            encoding.STALL.put(before, np.maximum(SETTLING_CYCLES, encoding.STALL.get(before)))
            bare = []
    if skeleton.moves is not None:
        _wait_for_readers(words, used, skeleton.moves.words)
    return words


def _using_registers(used: Operands) -> set[int]:
    """Words that read or write a register: others, such as moves between convergence barriers, wait for nothing."""
    return {
        place
        for each in (used.reads, used.writes)
        for place in each.word[(each.resource < PREDICATES) | (each.resource >= UNIFORM_REGISTERS)].tolist()
    }


def _wait_for_readers(words: Words, used: Operands, moves: NDArray[np.int64]) -> None:
    """A move that replaces a load waits for earlier readers of its destination; a load would execute after them."""
    reader = used.reads.before(encoding.DESTINATION.get(words)[moves], moves)
    board = np.where(reader < 0, NO_SCOREBOARD, encoding.READ_SCOREBOARD.get(words)[reader])
    late = board != NO_SCOREBOARD
    for places, field, least in (
        (moves[late], encoding.WAIT, encoding.WAIT.get(words[moves[late]]) | 1 << board[late]),
        (moves[late] - 1, encoding.STALL, np.maximum(encoding.STALL.get(words[moves[late] - 1]), SETTLING_CYCLES)),
    ):
        chosen = words[places]
        field.put(chosen, least)
        words[places] = chosen


def _put_epilogue(words: Words, skeleton: Skeleton, start: int) -> None:
    """Replaces FFMAs of biases by FADDs, XORs of packed accumulators by copies, and marker loads by zeros or moves."""
    biases = skeleton.biases
    adds = words[biases.words - start]
    encoding.OPCODE.put(adds, FADD_IMMEDIATE)
    encoding.SOURCE_A.put(adds, biases.added_to)
    encoding.SOURCE_C.put(adds, 0)
    encoding.REUSE.put(adds, 0)
    words[biases.words - start] = adds
    unpackings = words[skeleton.unpackings - start]
    put_zero_for(unpackings, skeleton.one)
    words[skeleton.unpackings - start] = unpackings
    changed = np.concatenate([biases.words, skeleton.unpackings]) - start
    before = words[changed - 1]  # may have kept an operand that has changed
    encoding.REUSE.put(before, 0)
    words[changed - 1] = before
    for place in (skeleton.zeroed - start).tolist():
        put_number(words[place : place + 1], 0, ZERO_CYCLES)
    if skeleton.moves is not None:
        places = skeleton.moves.words - start
        words[places] = _moved(words[places], skeleton.moves.sources)
        before = words[places - 1]  # a move reads registers, the load did not
        encoding.REUSE.put(before, 0)
        words[places - 1] = before


def _moved(loads: Words, sources: NDArray[np.int64]) -> Words:
    """MOVs of the registers `sources` in place of loads."""
    none = np.zeros(len(loads), dtype=np.int64)
    high = _ALL_LANES | control(none + ZERO_CYCLES, none + NO_SCOREBOARD, encoding.WAIT.get(loads), none)
    low = MOV | encoding.ALWAYS << 12 | encoding.DESTINATION.get(loads) << 16 | sources << 32
    return np.stack([low.view(np.uint64), high.view(np.uint64)], axis=1)


def put_number(load: Words, number: int, stall: int) -> None:
    """Replaces a load [1, 2] by a MOV of a number, in place."""
    target = encoding.DESTINATION.get(load)
    waits = encoding.WAIT.get(load)
    none = np.zeros(1, dtype=np.int64)
    high = _ALL_LANES | control(none + stall, none + NO_SCOREBOARD, waits, none)
    load[0, 0] = np.uint64(MOV_IMMEDIATE | encoding.ALWAYS << 12 | int(target[0]) << 16 | number << 32)
    load[0, 1] = np.uint64(int(high[0]))
