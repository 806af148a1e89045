"""What every K group runs around its stream: the leaf of a skeleton, without its markers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from codegen.sass.assemble.early_loads import OF_STREAMS, set_apart
from codegen.sass.assemble.early_stores import Finish
from codegen.sass.assemble.overlapped_chunks import Between
from codegen.sass.assemble.scheduling_bits import MOST_STALL, SETTLE_CYCLES, control
from codegen.sass.assemble.stalls import passed_by, settle
from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import NO_SCOREBOARD, Words
from codegen.sass.isa.opcodes import BRA, FADD_IMMEDIATE, MOV, MOV_IMMEDIATE, UNIFORM_REGISTERS
from codegen.sass.isa.operands import Operands, operands
from codegen.sass.skeleton.epilogue_code import put_zero_for
from codegen.sass.skeleton.reader import CONTROL, Skeleton
from codegen.sass.skeleton.register_copies import put_loads
from codegen.sass.verify.program import Program

_ALL_LANES = 0xF00
_OF_MOVES = 5
"""The scoreboard of what comes before a move, where the load that it replaces has none."""
ZERO_CYCLES = 6
"""From a number's MOV to whatever uses it."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """The leaf of a skeleton without its markers."""

    words: Words
    cuts: NDArray[np.int64]
    """[chunks]: where in them the multiply-adds of each chunk go."""
    entry_waits: NDArray[np.int64]
    """[chunks]: scoreboards that must be released before the first instruction there."""
    place: NDArray[np.int64]
    """[words of the skeleton's leaf + 1]: where each is now, or what follows it; streams not counted."""
    between: Between | None
    """What streams that run on are put around."""
    finish: Finish | None
    """The words behind the last chunk where that is in passes, if it can be."""
    entry_stall: int
    """Of the comparison that comes before the first word."""
    scoreboards: tuple[int, ...]
    """For the streams."""

    @staticmethod
    def of(skeleton: Skeleton, words: Words, head: Words) -> Leaf:
        """Leaves the markers out. What they waited for, whatever follows waits for; what they stalled, whatever is
        before them does.
        """
        start, end = skeleton.branch + 1, skeleton.leaf_end
        words = words[start:end].copy()
        gone = skeleton.markers[start:end]
        _put_ending(words, skeleton, start)
        put_loads(words, skeleton.copies - start, skeleton.zeroed - start)
        stalls, waits, reuse = (field.get(words) for field in (encoding.STALL, encoding.WAIT, encoding.REUSE))
        splices = {place - start: chunk for chunk, place in enumerate(skeleton.splices.tolist())}
        entry = np.zeros(len(splices), dtype=np.int64)
        last_kept, pending = -1, 0
        for place in range(len(words)):
            if place in splices:
                entry[splices[place]] = pending | int(waits[place])  # of the marker that names the pointers
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
        between = finish = None
        scoreboards = set_apart(words, int(cuts[-1])) if skeleton.runs_on else OF_STREAMS
        jumps = place_of[np.stack([skeleton.jumps, skeleton.targets], axis=1) - start]
        branches = encoding.OPCODE.get(skeleton.words[skeleton.jumps]) == BRA
        entry_stall = _shorten(words, own, cuts, jumps[branches], skeleton, head)
        if skeleton.runs_on:
            last = int(cuts[-1])
            between = Between.of(words, cuts, jumps[branches], skeleton.pointers, entry)
            finish = Finish.of(words[last:], skeleton.sums, _straight(words, last, jumps))
        return Leaf(words, cuts, entry, place_of, between, finish, entry_stall, scoreboards)

    @cached_property
    def in_passes(self) -> Leaf:
        """The same whose last chunk is in passes."""
        if self.finish is None:
            return self
        last, now = int(self.cuts[-1]), np.arange(len(self.words) + 1)
        now[last + self.finish.order] = np.arange(last, len(self.words))
        return replace(self, words=np.concatenate([self.words[:last], self.finish.words]), place=now[self.place])


def _shorten(
    words: Words,
    own: NDArray[np.int64],
    cuts: NDArray[np.int64],
    jumps: NDArray[np.int64],
    skeleton: Skeleton,
    head: Words,
) -> int:
    """Stalls before the last chunk, in place: not what markers took, but what results need. Where streams do not run
    on, those before the first. Returns that of the comparison between the head and the leaf.

    `own` [words] were theirs with markers. What a branch may pass keeps its stalls, and counts for no result's cycles.
    Nor do multiply-adds: there may be none, and then what is behind the last chunk needs results of what is before it.
    """
    end, entry = int(cuts[-1 if skeleton.runs_on else 0]), len(head)
    cuts = cuts[cuts <= end]
    begin = entry + 1
    inner = np.concatenate([head, skeleton.words[skeleton.compare : skeleton.compare + 1], words])
    passed = passed_by(np.concatenate([_branches(head), jumps + begin]), len(inner))
    addresses = np.concatenate([skeleton.pointers, UNIFORM_REGISTERS + skeleton.uniform[:, np.newaxis]], axis=1)
    stalls = encoding.STALL.get(inner)
    stalls[entry] = MOST_STALL
    least = np.concatenate([stalls[:entry], [1], own])
    sets = (encoding.WRITE_SCOREBOARD.get(inner) != NO_SCOREBOARD) | (
        encoding.READ_SCOREBOARD.get(inner) != NO_SCOREBOARD
    )
    least[begin:] = np.minimum(np.maximum(least, np.where(sets, SETTLE_CYCLES, 0)), stalls)[begin:]
    least[begin + end :] = stalls[begin + end :]
    settle(inner, least, stalls, passed, zip((cuts + begin).tolist(), addresses[: len(cuts)].tolist(), strict=True))
    words[:end] = inner[begin : begin + end]
    return int(encoding.STALL.get(inner)[entry])


def head_of(skeleton: Skeleton, words: Words) -> Words:
    """The words before the branch, with 0 for the number of the first K group."""
    head = words[: skeleton.branch].copy()
    put_number(head[skeleton.first_group : skeleton.first_group + 1], 0, MOST_STALL)
    stalls = encoding.STALL.get(head)
    least = stalls.copy()
    least[skeleton.first_group] = 1
    settle(head, least, stalls, passed_by(_branches(head), len(head)))
    return head


def _branches(words: Words) -> NDArray[np.int64]:
    """[branches, 2]: from and to."""
    return Program(words, np.zeros(0, dtype=np.int64)).branches


def _straight(words: Words, begin: int, jumps: NDArray[np.int64]) -> int:
    """How many words from `begin` on run one after the other, whatever happens."""
    control = np.isin(encoding.OPCODE.get(words[begin:]), CONTROL)
    control[jumps[jumps >= begin] - begin] = True
    return int(np.argmax(control)) if control.any() else len(control)


def covered(skeleton: Skeleton) -> Words:
    """The skeleton's words, where nothing relies on the end of a marker.

    Loads and stores end in order: ptxas leaves one without a scoreboard where a later one has one that is waited for.
    If that is a marker, the earlier ones get the scoreboard, and what comes in the marker's place waits for them.
    """
    words = skeleton.words.copy()
    used = operands(words)
    never = (encoding.PREDICATE.get(words) == encoding.ALWAYS) & (encoding.NEGATED_PREDICATE.get(words) == 1)
    later, gone = used.asynchronous & ~never, skeleton.markers.copy()
    gone[[skeleton.first_group, *skeleton.zeroed.tolist()]] = True
    moved = np.zeros(len(words), dtype=np.bool_)
    if skeleton.moves is not None:
        gone[skeleton.moves.words] = moved[skeleton.moves.words] = True
    has_result = used.per_word(lambda opcode: opcode.result) != 0
    sets, reads = encoding.WRITE_SCOREBOARD.get(words), encoding.READ_SCOREBOARD.get(words)
    bare: list[int] = []
    for place in np.flatnonzero(later[: skeleton.leaf_end]).tolist():
        board = int(min(sets[place], reads[place]))
        if moved[place] and board == NO_SCOREBOARD:
            board = _OF_MOVES
        if not gone[place]:
            if board == NO_SCOREBOARD:
                bare.append(place)
        elif board != NO_SCOREBOARD and bare:
            for each in bare:
                field = encoding.WRITE_SCOREBOARD if has_result[each] else encoding.READ_SCOREBOARD
                field.put(words[each : each + 1], board)
                encoding.STALL.put(words[each : each + 1], max(SETTLE_CYCLES, int(encoding.STALL.get(words[each]))))
            marker = words[place : place + 1]
            encoding.WAIT.put(marker, encoding.WAIT.get(marker) | 1 << board)
            before = words[place - 1 : place]
            encoding.STALL.put(before, np.maximum(SETTLE_CYCLES, encoding.STALL.get(before)))
            bare = []
    if skeleton.moves is not None:
        _wait_for_readers(words, used, skeleton.moves.words)
    return words


def _wait_for_readers(words: Words, used: Operands, moves: NDArray[np.int64]) -> None:
    """Each load that a move comes in the place of waits for who reads its register before: a load comes after them."""
    reader = used.reads.before(encoding.DESTINATION.get(words)[moves], moves)
    board = np.where(reader < 0, NO_SCOREBOARD, encoding.READ_SCOREBOARD.get(words)[reader])
    late = board != NO_SCOREBOARD
    for places, field, least in (
        (moves[late], encoding.WAIT, encoding.WAIT.get(words[moves[late]]) | 1 << board[late]),
        (moves[late] - 1, encoding.STALL, np.maximum(encoding.STALL.get(words[moves[late] - 1]), SETTLE_CYCLES)),
    ):
        chosen = words[places]
        field.put(chosen, least)
        words[places] = chosen


def _put_ending(words: Words, skeleton: Skeleton, start: int) -> None:
    """FADD in the place of the FFMA that stood for it, copies of packed sums, and zeros for loads that were markers."""
    biases = skeleton.biases
    adds = words[biases.words - start]
    encoding.OPCODE.put(adds, FADD_IMMEDIATE)
    encoding.SOURCE_A.put(adds, biases.added_to)
    encoding.SOURCE_C.put(adds, 0)
    encoding.REUSE.put(adds, 0)
    words[biases.words - start] = adds
    splits = words[skeleton.splits - start]
    put_zero_for(splits, skeleton.one)
    words[skeleton.splits - start] = splits
    changed = np.concatenate([biases.words, skeleton.splits]) - start
    before = words[changed - 1]  # they may have kept an operand that is no longer the same
    encoding.REUSE.put(before, 0)
    words[changed - 1] = before
    for place in (skeleton.zeroed - start).tolist():
        put_number(words[place : place + 1], 0, ZERO_CYCLES)
    if skeleton.moves is not None:
        places = skeleton.moves.words - start
        words[places] = _moved(words[places], skeleton.moves.sources)
        before = words[places - 1]  # a move reads registers where the load did not
        encoding.REUSE.put(before, 0)
        words[places - 1] = before


def _moved(loads: Words, sources: NDArray[np.int64]) -> Words:
    """MOV of registers in the place of loads."""
    none = np.zeros(len(loads), dtype=np.int64)
    high = _ALL_LANES | control(none + ZERO_CYCLES, none + NO_SCOREBOARD, encoding.WAIT.get(loads), none)
    low = MOV | encoding.ALWAYS << 12 | encoding.DESTINATION.get(loads) << 16 | sources << 32
    return np.stack([low.view(np.uint64), high.view(np.uint64)], axis=1)


def put_number(load: Words, number: int, stall: int) -> None:
    """MOV of a number in the place of a load, or of another such MOV; [1, 2], in place."""
    target = encoding.DESTINATION.get(load)
    waits = encoding.WAIT.get(load)
    none = np.zeros(1, dtype=np.int64)
    high = _ALL_LANES | control(none + stall, none + NO_SCOREBOARD, waits, none)
    load[0, 0] = np.uint64(MOV_IMMEDIATE | encoding.ALWAYS << 12 | int(target[0]) << 16 | number << 32)
    load[0, 1] = np.uint64(int(high[0]))
