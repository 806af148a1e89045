"""Streams that run on from chunk to chunk: what a leaf has between two chunks comes in the midst of multiply-adds.

The ring keeps its registers between two chunks. So the barrier comes as soon as the last input of a chunk is on its
way, and the multiply-adds of those that are in the ring issue in the shade of the stalls around it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codegen.sass.assemble.early_stores import Finish
from codegen.sass.assemble.operand_loads import Fetches
from codegen.sass.assemble.scheduling_bits import SETTLE_CYCLES
from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import NO_SCOREBOARD, Words
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton.marker_ptx import BANKS

DISTANCE = 8
"""Multiply-adds from the last load of a chunk to what comes between it and the next."""
FINISH_DISTANCE = 6
"""Multiply-adds from the last of a pass to the first word that finishes one of its sums: its result is there then."""
KEPT = 16
"""Multiply-adds that follow what comes between two chunks, if there are so many: the first loads need time."""
MOST_SPACING = 2.0
"""Multiply-adds from a load that comes right after it to the next."""
_ALONE = ("DEPBAR", "BSYNC", "WARPSYNC")
"""ptxas lets nothing issue while these stall."""


@dataclass(frozen=True, eq=False)
class Between:
    """The words that a leaf has between its first chunk and its last."""

    chunk: NDArray[np.int64]
    """[words]: the chunk that each follows."""
    stall: NDArray[np.int64]
    least: NDArray[np.int64]
    """[words]: the stall of each that is left where multiply-adds follow it."""
    room: NDArray[np.int64]
    """[words]: how many may follow each; none where a branch may pass them, or of what ptxas leaves alone."""
    frees: NDArray[np.bool_]
    """[words]: which write a pointer that a load may not have read yet."""
    waits: NDArray[np.int64]
    """[words]: scoreboards that each waits for, of those that these words set."""
    entry_waits: NDArray[np.int64]
    """[chunks]: what the first load of each waits for."""

    @staticmethod
    def of(
        words: Words,
        cuts: NDArray[np.int64],
        jumps: NDArray[np.int64],
        pointers: NDArray[np.int64],
        entry_waits: NDArray[np.int64],
    ) -> Between:
        """Of a leaf without markers, which chunks [chunks] cut; `jumps` [branches, 2] are places in it: from, to.

        `pointers` [chunks, pointers] are registers.
        """
        inner = words[cuts[0] : cuts[-1]]
        sets = (encoding.WRITE_SCOREBOARD.get(inner) != NO_SCOREBOARD) | (
            encoding.READ_SCOREBOARD.get(inner) != NO_SCOREBOARD
        )
        least = np.where(sets, SETTLE_CYCLES, 1)
        stall = np.maximum(encoding.STALL.get(inner), least)
        room = stall - least
        place = np.arange(cuts[0], cuts[-1])
        passed = np.zeros(len(inner), dtype=np.bool_)
        for source, target in jumps.tolist():
            passed |= (place >= min(source, target)) & (place < max(source, target))
        used = operands(inner)
        room[passed | used.named(*_ALONE)] = 0
        chunk = np.searchsorted(cuts, place, side="right") - 1
        writes = used.writes
        frees = np.zeros(len(inner), dtype=np.bool_)
        for back in range(BANKS):
            of_loads = pointers[np.maximum(chunk[writes.word] - back, 0)]
            frees[writes.word[(of_loads == writes.resource[:, np.newaxis]).any(axis=1)]] = True
        waits = _needed_waits(inner, passed)
        return Between(chunk, stall, least, room, frees, waits, entry_waits)


def _needed_waits(words: Words, passed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[words]: the scoreboards that each waits for but for those that only markers would have set since the last wait.

    What may be `passed` by a branch keeps its waits, and counts for nobody else's.
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
class Inserted:
    """The words between chunks in the streams of all groups: [groups, words] each, or of one."""

    before: NDArray[np.int64]
    """How many words of its group's stream come before each."""
    stalls: NDArray[np.int64]
    waits: NDArray[np.int64]

    def of(self, group: int) -> Inserted:
        return Inserted(self.before[group], self.stalls[group], self.waits[group])


def woven(
    words: Words, within: slice, zeros: Words, stream: Words, inserted: Inserted
) -> tuple[Words, NDArray[np.int64]]:
    """The words of a leaf without markers and those of a stream, one piece; those `within` are between its chunks.

    The second result, [words of the leaf + 1], is where each lies then, and where they end. The zeros come first.
    """
    between = words[within]
    encoding.YIELD.put(
        between, np.where(inserted.stalls != encoding.STALL.get(between), 1, encoding.YIELD.get(between))
    )
    encoding.STALL.put(between, inserted.stalls)
    encoding.WAIT.put(between, inserted.waits)
    length = len(zeros) + len(stream)
    before = np.concatenate(
        [
            np.zeros(within.start, dtype=np.int64),
            len(zeros) + inserted.before,
            [length] * (len(words) + 1 - within.stop),
        ]
    )
    place = np.arange(len(words) + 1) + before
    whole = np.empty((len(words) + length, 2), dtype=np.uint64)
    of_stream = np.ones(len(whole), dtype=np.bool_)
    of_stream[place[:-1]] = False
    whole[place[:-1]], whole[of_stream] = words, np.concatenate([zeros, stream])
    return whole, place


@dataclass(frozen=True, eq=False)
class Places:
    """Where loads and the words between chunks go."""

    before: NDArray[np.int64]
    """[loads]: the multiply-add before which each goes."""
    between: NDArray[np.int64]
    """[groups, words]: the instruction of the streams before which each goes."""
    following: NDArray[np.int64]
    """[groups, words]: the one before which the next word goes, or the next chunk's loads begin."""
    stalls: NDArray[np.int64]
    """[groups, words]"""
    waits: NDArray[np.int64]
    """[groups, words]"""
    first: NDArray[np.int64]
    """[groups * chunks]: the first load of each chunk."""

    @staticmethod
    def of(fetched: Fetches, between: Between, chunks: int, count: int) -> Places:
        """Of `count` multiply-adds, of groups whose every chunk has loads; a chunk's first load begins a turn."""
        begins = np.flatnonzero(np.diff(fetched.segment, prepend=-1))
        first = begins.reshape(-1, chunks)
        last = np.append(begins[1:], len(fetched.segment)).reshape(-1, chunks) - 1
        user = fetched.users[np.searchsorted(fetched.leads, np.arange(len(fetched.segment)), side="right") - 1]
        groups = len(first)
        length = np.diff(np.append(user[begins], count)).reshape(groups, chunks)
        spacing = np.minimum(length / (last - first + 1) / 2, MOST_SPACING)
        late = np.arange(len(user)) - begins[fetched.segment]
        loads = fetched.before.copy()
        at, following = np.zeros((2, groups, len(between.chunk)), dtype=np.int64)
        over = user[first[:, 0]]
        by_chunk = np.argsort(fetched.segment % chunks, kind="stable")
        bounds = np.cumsum((last - first + 1).sum(axis=0))
        for chunk, own in enumerate(np.split(by_chunk, bounds[:-1])):
            group = fetched.segment[own] // chunks
            spread = over[group] + (spacing[group, chunk] * late[own]).astype(np.int64)
            loads[own] = np.maximum(loads[own], np.minimum(spread, user[own]))
            if chunk == chunks - 1:
                break
            chosen = slice(*np.searchsorted(between.chunk, [chunk, chunk + 1]).tolist())
            shade = np.append(0, np.cumsum(between.room[chosen]))
            limit = user[first[:, chunk + 1]]
            start = np.minimum(loads[last[:, chunk]] + DISTANCE, limit)
            shaded = np.maximum(start, limit - KEPT)
            reached = np.minimum(start[:, np.newaxis] + shade, shaded[:, np.newaxis])
            before = (last[:, chunk] + 1)[:, np.newaxis]  # loads
            at[:, chosen], following[:, chosen] = reached[:, :-1] + before, reached[:, 1:] + before
            over = reached[:, -1]
        boards = 1 << fetched.scoreboard[last]
        return Places(
            before=loads,
            between=at,
            following=following,
            stalls=np.where(following > at, between.least, between.stall),
            waits=between.waits | np.where(between.frees, boards[:, between.chunk], 0),
            first=begins,
        )

    def finishing(self, finish: Finish, bounds: NDArray[np.int64]) -> Places:
        """These and the words that finish sums amid the last chunk, whose passes end [groups, passes] there."""
        words = finish.words[: len(finish.passes)]
        at = np.zeros((len(bounds), len(words)), dtype=np.int64)
        for number in range(bounds.shape[1] - 1):
            own = finish.passes == number
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

    def inserted(self, begins: NDArray[np.int64]) -> Inserted:
        """Of groups whose streams begin [groups] there."""
        return Inserted(self.between - begins[:, np.newaxis], self.stalls, self.waits)
