"""Overlapped chunks: the words between two chunks stand among multiply-adds, which issue during their stalls.

The operand ring keeps its registers between two chunks. The barrier comes as soon as the last input of a chunk is being
loaded, and the multiply-adds of inputs in the ring issue during the stalls around it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codegen.sass.assemble.early_stores import EarlyStores
from codegen.sass.assemble.operand_loads import OperandLoads
from codegen.sass.isa import encoding
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import NO_SCOREBOARD, Words
from codegen.sass.isa.latencies import SETTLING_CYCLES
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton.marker_ptx import BANKS

DISTANCE = 8
"""Multiply-adds from the last load of a chunk to the first gap word behind it."""
FINISH_DISTANCE = 6
"""Multiply-adds from the last of a pass to its first early-store word, so that the result is available."""
KEPT = 16
"""Multiply-adds kept for the time behind a gap, if there are that many, while the first loads complete."""
MOST_SPACING = 2.0
"""Largest distance, in multiply-adds, of the loads right behind a gap."""
_ALONE = ("DEPBAR", "BSYNC", "WARPSYNC")
"""Instructions during whose stalls ptxas issues nothing else."""


@dataclass(frozen=True, eq=False)
class GapWords:
    """Gap words: the words of a body between its first chunk and its last."""

    chunk: NDArray[np.int64]
    """[words]: the chunk that each follows."""
    stall: NDArray[np.int64]
    least: NDArray[np.int64]
    """[words]: the stall of each where multiply-adds follow it."""
    room: NDArray[np.int64]
    """[words]: multiply-adds that may follow each: 0 where a branch may pass it, and for instructions of `_ALONE`."""
    frees: NDArray[np.bool_]
    """[words]: whether each writes a pointer that an earlier load may not have read yet."""
    waits: NDArray[np.int64]
    """[words]: scoreboards that each waits for, of those that gap words set."""
    entry_waits: NDArray[np.int64]
    """[chunks]: scoreboards that the first load of each waits for."""

    @staticmethod
    def of(
        words: Words,
        cuts: NDArray[np.int64],
        jumps: NDArray[np.int64],
        pointers: NDArray[np.int64],
        entry_waits: NDArray[np.int64],
        architecture: Architecture,
    ) -> GapWords:
        """From a body without markers, cut by chunks [chunks]; `jumps` [branches, 2] are places: from, to.

        `pointers` [chunks, pointers] are registers.
        """
        inner = words[cuts[0] : cuts[-1]]
        sets = (encoding.WRITE_SCOREBOARD.get(inner) != NO_SCOREBOARD) | (
            encoding.READ_SCOREBOARD.get(inner) != NO_SCOREBOARD
        )
        least = np.where(sets, SETTLING_CYCLES, 1)
        stall = np.maximum(encoding.STALL.get(inner), least)
        room = stall - least
        place = np.arange(cuts[0], cuts[-1])
        passed = np.zeros(len(inner), dtype=np.bool_)
        for source, target in jumps.tolist():
            passed |= (place >= min(source, target)) & (place < max(source, target))
        used = operands(inner, architecture)
        room[passed | used.named(*_ALONE)] = 0
        chunk = np.searchsorted(cuts, place, side="right") - 1
        writes = used.writes
        frees = np.zeros(len(inner), dtype=np.bool_)
        for back in range(BANKS):
            of_loads = pointers[np.maximum(chunk[writes.word] - back, 0)]
            frees[writes.word[(of_loads == writes.resource[:, np.newaxis]).any(axis=1)]] = True
        waits = _needed_waits(inner, passed)
        return GapWords(chunk, stall, least, room, frees, waits, entry_waits)


def _needed_waits(words: Words, passed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[words]: the scoreboards that each waits for, without those that only markers have set since the last wait.

    A word that a branch may pass keeps its waits, which do not count as waits for other words.
    """
    waits = encoding.WAIT.get(words)
    sets = encoding.WRITE_SCOREBOARD.get(words), encoding.READ_SCOREBOARD.get(words)
    pending = (1 << encoding.SCOREBOARDS) - 1
    for place in range(len(words)):
        if not passed[place]:
            waits[place] &= pending
            pending &= ~int(waits[place])
        for boards in sets:
            pending |= 1 << int(boards[place]) if boards[place] != NO_SCOREBOARD else 0
    return waits


@dataclass(frozen=True, eq=False)
class InsertedWords:
    """Gap words within the weight code: [groups, words] each, or [words] of one group."""

    before: NDArray[np.int64]
    """Words of its group's weight code that come before each."""
    stalls: NDArray[np.int64]
    waits: NDArray[np.int64]

    def of(self, group: int) -> InsertedWords:
        return InsertedWords(self.before[group], self.stalls[group], self.waits[group])


def interleaved(
    words: Words, within: slice, zeros: Words, code: Words, inserted: InsertedWords
) -> tuple[Words, NDArray[np.int64]]:
    """The words of a body and of its weight code in one piece; body words `within` are gap words, zeros come first.

    The second result, [words of the body + 1], is the new place of each, and the end.
    """
    between = words[within]
    encoding.YIELD.put(
        between, np.where(inserted.stalls != encoding.STALL.get(between), 1, encoding.YIELD.get(between))
    )
    encoding.STALL.put(between, inserted.stalls)
    encoding.WAIT.put(between, inserted.waits)
    length = len(zeros) + len(code)
    before = np.concatenate(
        [
            np.zeros(within.start, dtype=np.int64),
            len(zeros) + inserted.before,
            [length] * (len(words) + 1 - within.stop),
        ]
    )
    place = np.arange(len(words) + 1) + before
    whole = np.empty((len(words) + length, 2), dtype=np.uint64)
    of_code = np.ones(len(whole), dtype=np.bool_)
    of_code[place[:-1]] = False
    whole[place[:-1]], whole[of_code] = words, np.concatenate([zeros, code])
    return whole, place


@dataclass(frozen=True, eq=False)
class Placement:
    """Places of loads and gap words."""

    before: NDArray[np.int64]
    """[loads]: the operation that each goes before."""
    between: NDArray[np.int64]
    """[groups, words]: the instruction of the weight code that each goes before."""
    following: NDArray[np.int64]
    """[groups, words]: the instruction before the next gap word, or where the next chunk's loads begin."""
    stalls: NDArray[np.int64]
    """[groups, words]: the stall of each."""
    waits: NDArray[np.int64]
    """[groups, words]: scoreboards that each waits for."""
    first: NDArray[np.int64]
    """[groups * chunks]: the first load of each chunk."""

    @staticmethod
    def of(loaded: OperandLoads, gap: GapWords, chunks: int, count: int) -> Placement:
        """Places among `count` operations. Every chunk has loads, and its first load begins a turn."""
        begins = np.flatnonzero(np.diff(loaded.segment, prepend=-1))
        first = begins.reshape(-1, chunks)
        last = np.append(begins[1:], len(loaded.segment)).reshape(-1, chunks) - 1
        user = loaded.users[np.searchsorted(loaded.leads, np.arange(len(loaded.segment)), side="right") - 1]
        groups = len(first)
        length = np.diff(np.append(user[begins], count)).reshape(groups, chunks)
        spacing = np.minimum(length / (last - first + 1) / 2, MOST_SPACING)
        late = np.arange(len(user)) - begins[loaded.segment]
        loads = loaded.before.copy()
        at, following = np.zeros((2, groups, len(gap.chunk)), dtype=np.int64)
        over = user[first[:, 0]]
        by_chunk = np.argsort(loaded.segment % chunks, kind="stable")
        bounds = np.cumsum((last - first + 1).sum(axis=0))
        for chunk, own in enumerate(np.split(by_chunk, bounds[:-1])):
            group = loaded.segment[own] // chunks
            spread = over[group] + (spacing[group, chunk] * late[own]).astype(np.int64)
            loads[own] = np.maximum(loads[own], np.minimum(spread, user[own]))
            if chunk == chunks - 1:
                break
            chosen = slice(*np.searchsorted(gap.chunk, [chunk, chunk + 1]).tolist())
            shade = np.append(0, np.cumsum(gap.room[chosen]))
            limit = user[first[:, chunk + 1]]
            start = np.minimum(loads[last[:, chunk]] + DISTANCE, limit)
            shaded = np.maximum(start, limit - KEPT)
            reached = np.minimum(start[:, np.newaxis] + shade, shaded[:, np.newaxis])
            before = (last[:, chunk] + 1)[:, np.newaxis]  # loads
            at[:, chosen], following[:, chosen] = reached[:, :-1] + before, reached[:, 1:] + before
            over = reached[:, -1]
        boards = 1 << loaded.scoreboard[last]
        return Placement(
            before=loads,
            between=at,
            following=following,
            stalls=np.where(following > at, gap.least, gap.stall),
            waits=gap.waits | np.where(gap.frees, boards[:, gap.chunk], 0),
            first=begins,
        )

    def with_early_stores(self, early: EarlyStores, bounds: NDArray[np.int64]) -> Placement:
        """Adds early-store words to the last chunk, whose passes end at the operations `bounds` [groups, passes]."""
        words = early.words[: len(early.passes)]
        at = np.zeros((len(bounds), len(words)), dtype=np.int64)
        for number in range(bounds.shape[1] - 1):
            own = early.passes == number
            begin = np.minimum(bounds[:, number : number + 1] + FINISH_DISTANCE, bounds[:, -1:])
            end = np.maximum(begin, bounds[:, number + 1 : number + 2])
            at[:, own] = begin + (end - begin) * np.arange(own.sum()) // own.sum()
        at += np.searchsorted(self.before, at)
        stalls, waits = (np.broadcast_to(field.get(words), at.shape) for field in (encoding.STALL, encoding.WAIT))
        return replace(
            self,
            between=np.concatenate([self.between, at], axis=1),
            following=np.concatenate([self.following, at], axis=1),
            stalls=np.concatenate([self.stalls, stalls], axis=1),
            waits=np.concatenate([self.waits, waits], axis=1),
        )

    def inserted(self, begins: NDArray[np.int64]) -> InsertedWords:
        """The gap words of groups whose weight code begins at `begins` [groups]."""
        return InsertedWords(self.between - begins[:, np.newaxis], self.stalls, self.waits)
