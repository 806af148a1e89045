"""Streams into a skeleton: a leaf for every K group, a tree of branches to them, and the cubin around it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from codegen.sass.assemble.group_body import Leaf, covered, head_of
from codegen.sass.assemble.overlapped_chunks import Inserted, woven
from codegen.sass.assemble.scheduling_bits import MOST_STALL, control
from codegen.sass.assemble.weight_code import Streams, zeroes
from codegen.sass.isa import encoding
from codegen.sass.isa.branches import put_jump_distances
from codegen.sass.isa.encoding import NO_SCOREBOARD, WORD_BYTES, Words
from codegen.sass.isa.latencies import GUARD_CYCLES
from codegen.sass.isa.opcodes import EXIT, NOP
from codegen.sass.skeleton.marker_ptx import NO_GROUP
from codegen.sass.skeleton.reader import Skeleton

_PADDING = 8
"""Code is a multiple of so many words long."""


@dataclass(frozen=True, eq=False)
class GroupValues:
    """What the epilogues have of the weights."""

    biases: NDArray[np.uint32]
    """[groups, sums of a row]: bits."""
    exists: NDArray[np.bool_]
    """[groups, sums of a row]: whether the sum is one of the layer's."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A skeleton ready to take streams: what all K groups of all checkpoints share."""

    skeleton: Skeleton
    head: Words
    """With 0 for the number of the first K group."""
    leaf: Leaf
    unset: tuple[int, ...]
    """Scoreboards that the head does not set."""
    exit_place: int
    """The end that follows the leaf in the skeleton: all from there on stays."""

    @staticmethod
    def of(skeleton: Skeleton) -> Frame:
        words = covered(skeleton)
        head = head_of(skeleton, words)
        sets = np.union1d(encoding.WRITE_SCOREBOARD.get(head), encoding.READ_SCOREBOARD.get(head)).tolist()
        end = skeleton.leaf_end
        return Frame(
            skeleton,
            head,
            Leaf.of(skeleton, words, head),
            tuple(board for board in range(encoding.SCOREBOARDS) if board not in sets),
            end + int(np.flatnonzero(encoding.OPCODE.get(skeleton.words[end:]) == EXIT)[0]),
        )


def splice(frame: Frame, first_group: int, parts: Streams, values: GroupValues) -> bytes:
    """The cubin of the K groups from `first_group` on."""
    skeleton, exit_place = frame.skeleton, frame.exit_place
    groups, start, end = len(values.biases), skeleton.branch + 1, skeleton.leaf_end
    code = _Code(frame, first_group)
    moved = np.zeros((groups, len(skeleton.words) + 1), dtype=np.int64)
    moved[:, :start] = np.arange(start)
    nodes: list[tuple[int, int]] = []
    begins = np.zeros(groups, dtype=np.int64)
    for group, middles in enumerate(_nodes_before(groups)):
        begins[group] = code.length
        nodes += [(code.append_node(first_group + middle), middle) for middle in middles]
        code.append(code.compare(NO_GROUP, frame.leaf.entry_stall))  # the predicate as the leaf may expect it
        moved[group, start:end] = code.append_leaf(parts, values, group)
    moved[:, end:] = code.length + np.maximum(np.arange(end, len(skeleton.words) + 1) - exit_place, 0)
    code.append(skeleton.words[exit_place:])
    code.append(np.repeat(_nop(1), -code.length % _PADDING, axis=0))
    words = code.joined()
    of_nodes, later = np.array(nodes, dtype=np.int64).reshape(-1, 2).T
    jumps = np.concatenate([of_nodes, moved[:, skeleton.jumps].ravel()])
    targets = np.concatenate([begins[later], moved[:, skeleton.targets].ravel()])
    _put_jumps(words, jumps, targets, skeleton.file.capability)
    moved[:, -1] = len(words)
    return skeleton.file.with_code(words, moved, skeleton.registers)


def _nodes_before(groups: int) -> list[list[int]]:
    """The K groups whose leaf the branches before each leaf go to: a binary tree, the nearest last."""
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
    """Words in the order in which they will lie."""

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
        """The comparison of the K group's number with another one."""
        compare = self.skeleton.words[self.skeleton.compare : self.skeleton.compare + 1].copy()
        encoding.IMMEDIATE.put(compare, group)
        encoding.STALL.put(compare, stall)
        encoding.YIELD.put(compare, int(stall < 3))
        encoding.REUSE.put(compare, 0)  # what follows is not what followed it
        branch = self.skeleton.words[self.skeleton.branch : self.skeleton.branch + 1]
        encoding.WAIT.put(compare, encoding.WAIT.get(compare) | encoding.WAIT.get(branch))
        return compare

    def append_node(self, group: int) -> int:
        """Branches from this K group on; returns where the branch is."""
        branch = self.skeleton.words[self.skeleton.branch : self.skeleton.branch + 1]
        self.append(self.compare(group, GUARD_CYCLES))
        self.append(branch)
        return self.length - 1

    def append_leaf(self, parts: Streams, values: GroupValues, group: int) -> NDArray[np.int64]:
        """A leaf with its streams; returns where each word of the skeleton's leaf is now."""
        leaf, start, begin = self.frame.leaf, self.skeleton.branch + 1, self.length
        if parts.in_passes:
            leaf = leaf.in_passes
        words = leaf.words.copy()
        places = leaf.place[self.skeleton.biases.words - start]
        adds = words[places]
        encoding.IMMEDIATE.put(adds, values.biases[group][self.skeleton.biases.numbers])
        words[places] = adds
        if not values.exists[group].all():
            self._drop_outputs(leaf, words, values.exists[group])
        if parts.inserted is not None:
            return self._append_woven(leaf, words, parts, parts.inserted, group)
        cuts, segments = leaf.cuts.tolist(), _segments(self.frame, parts, group)
        before = [words[low:high] for low, high in pairwise([0, *cuts])]
        pieces = [each for pair in zip(before, segments, strict=True) for each in pair]
        whole = np.concatenate([*pieces, words[cuts[-1] :]])
        _drop_waits(whole, self.frame.unset)
        self.append(whole)
        added = np.append(0, np.cumsum([len(segment) for segment in segments]))
        old = np.arange(start, self.skeleton.leaf_end)
        before_each = np.searchsorted(self.skeleton.splices, old, side="left")
        place: NDArray[np.int64] = begin + leaf.place[:-1] + added[before_each]
        return place

    def _append_woven(
        self, leaf: Leaf, words: Words, parts: Streams, inserted: Inserted, group: int
    ) -> NDArray[np.int64]:
        """A leaf and a stream that runs on; returns what `append_leaf` does."""
        chunks, begin = len(leaf.cuts), self.length
        low, high = np.append(0, parts.ends)[[group * chunks, (group + 1) * chunks]].tolist()
        zeros = zeroes(self.skeleton.sums[parts.untouched[group]])
        within = slice(int(leaf.cuts[0]), int(leaf.cuts[0]) + inserted.before.shape[1])
        whole, place = woven(words, within, zeros, parts.words[low:high], inserted.of(group))
        _drop_waits(whole, self.frame.unset)
        self.append(whole)
        places: NDArray[np.int64] = begin + place[leaf.place[:-1]]
        return places

    def _drop_outputs(self, leaf: Leaf, words: Words, exists: NDArray[np.bool_]) -> None:
        """Stores of sums that are none of the layer's, and loads of what is added to them, are never done."""
        gone = leaf.place[self.skeleton.accesses_of(exists) - self.skeleton.branch - 1]
        accesses = words[gone]
        encoding.PREDICATE.put(accesses, encoding.ALWAYS)
        encoding.NEGATED_PREDICATE.put(accesses, 1)
        words[gone] = accesses


def _drop_waits(leaf: Words, unset: tuple[int, ...]) -> None:
    """Takes away waits for what only markers would have set; `unset` are the scoreboards that nothing before sets."""
    waits = encoding.WAIT.get(leaf)
    written, read = encoding.WRITE_SCOREBOARD.get(leaf), encoding.READ_SCOREBOARD.get(leaf)
    for board in unset:
        sets = (written == board) | (read == board)
        waits[: int(np.argmax(sets)) + 1 if sets.any() else None] &= ~(1 << board)
    encoding.WAIT.put(leaf, waits)


def _segments(frame: Frame, parts: Streams, group: int) -> list[Words]:
    """The streams of one K group, each with what the leaf has waited for before it."""
    leaf, skeleton = frame.leaf, frame.skeleton
    chunks = len(leaf.cuts)
    bounds = np.append(0, parts.ends)[group * chunks : (group + 1) * chunks + 1].tolist()
    segments = [parts.words[begin:end] for begin, end in pairwise(bounds)]
    if parts.untouched[group].any():
        read = skeleton.wide if skeleton.wide.size else skeleton.sums
        segments[0] = np.concatenate([zeroes(read[parts.untouched[group]].ravel()), segments[0]])
    for chunk, waits in enumerate(leaf.entry_waits.tolist()):
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


def _put_jumps(words: Words, places: NDArray[np.int64], targets: NDArray[np.int64], capability: int) -> None:
    jumps = words[places]
    put_jump_distances(jumps, (targets - places - 1) * WORD_BYTES, capability)
    words[places] = jumps
