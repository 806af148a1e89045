"""Linking: weight code into a skeleton; a body for every K group, a tree of branches to them, and the cubin around."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from codegen.sass.assemble.group_body import GroupBody, head_of, without_marker_scoreboards
from codegen.sass.assemble.overlapped_chunks import InsertedWords, interleaved
from codegen.sass.assemble.scheduling import MOST_STALL, control, keep_intervals
from codegen.sass.assemble.weight_code import WeightCode, zeroes
from codegen.sass.cubin import CubinFile
from codegen.sass.isa import encoding
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.branches import put_jump_distances
from codegen.sass.isa.encoding import NO_SCOREBOARD, WORD_BYTES, Words
from codegen.sass.isa.opcodes import EXIT, NOP
from codegen.sass.skeleton.marker_ptx import NO_GROUP
from codegen.sass.skeleton.reader import Skeleton

_PADDING = 8
"""The number of words in a kernel's code is a multiple of this."""


@dataclass(frozen=True, eq=False)
class GroupValues:
    """The weights that epilogues depend on."""

    biases: NDArray[np.uint32]
    """[groups, accumulators of a row]: bits."""
    exists: NDArray[np.bool_]
    """[groups, accumulators of a row]: whether it belongs to one of the layer's output channels."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A skeleton prepared for weight code: the part that all K groups of all checkpoints share."""

    skeleton: Skeleton
    head: Words
    """Its words, with 0 as the number of the first K group."""
    body: GroupBody
    unset: tuple[int, ...]
    """Scoreboards that the head does not set."""
    exit_place: int
    """The EXIT that follows the body in the skeleton: code from there on stays."""

    def of_file(self, file: CubinFile) -> Frame:
        """The frame of a skeleton whose file has the same code, for an architecture that writes code alike."""
        return replace(self, skeleton=replace(self.skeleton, file=file))

    @staticmethod
    def of(skeleton: Skeleton) -> Frame:
        words = without_marker_scoreboards(skeleton)
        head = head_of(skeleton, words)
        sets = np.union1d(encoding.WRITE_SCOREBOARD.get(head), encoding.READ_SCOREBOARD.get(head)).tolist()
        end = skeleton.body_end
        return Frame(
            skeleton,
            head,
            GroupBody.of(skeleton, words, head),
            tuple(board for board in range(encoding.SCOREBOARDS) if board not in sets),
            end + int(np.flatnonzero(encoding.OPCODE.get(skeleton.words[end:]) == EXIT)[0]),
        )


@dataclass(frozen=True, eq=False)
class LinkedCode:
    """The words of a cubin, with weights."""

    words: Words
    moved: NDArray[np.int64]
    """[groups, words of the skeleton + 1]: the new place of each word in the body of each K group."""


def link(frame: Frame, first_group: int, weight_code: WeightCode, values: GroupValues) -> LinkedCode:
    """The code of the K groups from `first_group` on; `weight_code` is their weight code."""
    skeleton, exit_place = frame.skeleton, frame.exit_place
    groups, start, end = len(values.biases), skeleton.branch + 1, skeleton.body_end
    code = _Code(frame, first_group)
    moved = np.zeros((groups, len(skeleton.words) + 1), dtype=np.int64)
    moved[:, :start] = np.arange(start)
    nodes: list[tuple[int, int]] = []
    begins = np.zeros(groups, dtype=np.int64)
    for group, middles in enumerate(_nodes_before(groups)):
        begins[group] = code.length
        nodes += [(code.append_node(first_group + middle), middle) for middle in middles]
        code.append(code.compare(NO_GROUP, frame.body.entry_stall))  # the body may use this predicate
        moved[group, start:end] = code.append_body(weight_code, values, group)
    moved[:, end:] = code.length + np.maximum(np.arange(end, len(skeleton.words) + 1) - exit_place, 0)
    code.append(skeleton.words[exit_place:])
    code.append(np.repeat(_nop(1), -code.length % _PADDING, axis=0))
    words = code.joined()
    of_nodes, later = np.array(nodes, dtype=np.int64).reshape(-1, 2).T
    jumps = np.concatenate([of_nodes, moved[:, skeleton.jumps].ravel()])
    targets = np.concatenate([begins[later], moved[:, skeleton.targets].ravel()])
    _put_jumps(words, jumps, targets, skeleton.architecture)
    keep_intervals(words, skeleton.architecture)
    moved[:, -1] = len(words)
    return LinkedCode(words, moved)


def _nodes_before(groups: int) -> list[list[int]]:
    """[groups]: the targets of the branches before each body, the nearest last; all together are a binary tree."""
    before: list[list[int]] = [[] for _ in range(groups)]

    def divide(low: int, high: int) -> None:
        if high - low > 1:
            middle = (low + high) // 2
            before[low].append(middle)
            divide(low, middle)
            divide(middle, high)

    divide(0, groups)
    return before


class _Code:
    """Code under construction, in order."""

    def __init__(self, frame: Frame, first_group: int) -> None:
        self.frame = frame
        self.skeleton = frame.skeleton
        head = frame.head.copy()
        encoding.IMMEDIATE.put(head[self.skeleton.first_group : self.skeleton.first_group + 1], first_group)
        self.length = len(head)
        self._pieces = [head]

    def append(self, words: Words) -> None:
        self._pieces.append(words)
        self.length += len(words)

    def joined(self) -> Words:
        return np.concatenate(self._pieces)

    def compare(self, group: int, stall: int) -> Words:
        """Comparison of the K group's number with `group`."""
        compare = self.skeleton.words[self.skeleton.compare : self.skeleton.compare + 1].copy()
        encoding.IMMEDIATE.put(compare, group)
        encoding.STALL.put(compare, stall)
        encoding.YIELD.put(compare, int(stall < 3))
        encoding.REUSE.put(compare, 0)  # another word follows now
        branch = self.skeleton.words[self.skeleton.branch : self.skeleton.branch + 1]
        encoding.WAIT.put(compare, encoding.WAIT.get(compare) | encoding.WAIT.get(branch))
        return compare

    def append_node(self, group: int) -> int:
        """Appends a branch taken by K groups from `group` on; returns its place."""
        branch = self.skeleton.words[self.skeleton.branch : self.skeleton.branch + 1]
        self.append(self.compare(group, self.skeleton.architecture.latencies.guard))
        self.append(branch)
        return self.length - 1

    def append_body(self, weight_code: WeightCode, values: GroupValues, group: int) -> NDArray[np.int64]:
        """Appends a body with its weight code; returns the new place of each word of the skeleton's body."""
        body, start, begin = self.frame.body, self.skeleton.branch + 1, self.length
        if weight_code.stores_early:
            body = body.with_early_stores
        words = body.words.copy()
        places = body.place[self.skeleton.biases.words - start]
        adds = words[places]
        encoding.IMMEDIATE.put(adds, values.biases[group][self.skeleton.biases.numbers])
        words[places] = adds
        if not values.exists[group].all():
            self._disable_outputs(body, words, values.exists[group])
        if weight_code.inserted is not None:
            return self._append_interleaved(body, words, weight_code, weight_code.inserted, group)
        cuts, segments = body.cuts.tolist(), _segments(self.frame, weight_code, group)
        before = [words[low:high] for low, high in pairwise([0, *cuts])]
        pieces = [each for pair in zip(before, segments, strict=True) for each in pair]
        whole = np.concatenate([*pieces, words[cuts[-1] :]])
        _drop_waits(whole, self.frame.unset)
        self.append(whole)
        added = np.append(0, np.cumsum([len(segment) for segment in segments]))
        old = np.arange(start, self.skeleton.body_end)
        before_each = np.searchsorted(self.skeleton.splices, old, side="left")
        place: NDArray[np.int64] = begin + body.place[:-1] + added[before_each]
        return place

    def _append_interleaved(
        self, body: GroupBody, words: Words, weight_code: WeightCode, inserted: InsertedWords, group: int
    ) -> NDArray[np.int64]:
        """Appends a body with weight code whose chunks overlap; returns the new places as `append_body` does."""
        chunks, begin = len(body.cuts), self.length
        low, high = np.append(0, weight_code.ends)[[group * chunks, (group + 1) * chunks]].tolist()
        zeros = zeroes(self.skeleton.accumulators[weight_code.untouched[group]], self.skeleton.architecture.latencies)
        within = slice(int(body.cuts[0]), int(body.cuts[0]) + inserted.before.shape[1])
        whole, place = interleaved(words, within, zeros, weight_code.words[low:high], inserted.of(group))
        _drop_waits(whole, self.frame.unset)
        self.append(whole)
        places: NDArray[np.int64] = begin + place[body.place[:-1]]
        return places

    def _disable_outputs(self, body: GroupBody, words: Words, exists: NDArray[np.bool_]) -> None:
        """Disables stores of outputs that do not exist, and loads of values added to them, by their predicate."""
        gone = body.place[self.skeleton.accesses_of(exists) - self.skeleton.branch - 1]
        accesses = words[gone]
        encoding.PREDICATE.put(accesses, encoding.ALWAYS)
        encoding.NEGATED_PREDICATE.put(accesses, 1)
        words[gone] = accesses


def _drop_waits(body: Words, unset: tuple[int, ...]) -> None:
    """Removes waits for scoreboards that only markers set; `unset` are those that the head does not set."""
    waits = encoding.WAIT.get(body)
    written, read = encoding.WRITE_SCOREBOARD.get(body), encoding.READ_SCOREBOARD.get(body)
    for board in unset:
        sets = (written == board) | (read == board)
        waits[: int(np.argmax(sets)) + 1 if sets.any() else None] &= ~(1 << board)
    encoding.WAIT.put(body, waits)


def _segments(frame: Frame, weight_code: WeightCode, group: int) -> list[Words]:
    """The weight code of each chunk of a K group; its first word takes over waits of the body."""
    body, skeleton = frame.body, frame.skeleton
    chunks = len(body.cuts)
    bounds = np.append(0, weight_code.ends)[group * chunks : (group + 1) * chunks + 1].tolist()
    segments = [weight_code.words[begin:end] for begin, end in pairwise(bounds)]
    if weight_code.untouched[group].any():
        read = skeleton.wide if skeleton.wide.size else skeleton.accumulators
        zeros = zeroes(read[weight_code.untouched[group]].ravel(), skeleton.architecture.latencies)
        segments[0] = np.concatenate([zeros, segments[0]])
    for chunk, waits in enumerate(body.entry_waits.tolist()):
        if not len(segments[chunk]):
            segments[chunk] = _nop(MOST_STALL)
        if waits:
            segments[chunk] = segments[chunk].copy()
            first = segments[chunk][:1]
            encoding.WAIT.put(first, encoding.WAIT.get(first) | waits)
    return segments


def _nop(stall: int) -> Words:
    none = np.zeros(1, dtype=np.int64)
    high = control(none + stall, none + NO_SCOREBOARD, none, none)
    return np.array([[NOP | encoding.ALWAYS << 12, int(high[0])]], dtype=np.uint64)


def _put_jumps(words: Words, places: NDArray[np.int64], targets: NDArray[np.int64], architecture: Architecture) -> None:
    jumps = words[places]
    put_jump_distances(jumps, (targets - places - 1) * WORD_BYTES, architecture)
    words[places] = jumps
