"""Hazards across branches: results that are pending where a branch is taken, and used where it goes.

All branches of a kernel are followed at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.encoding import SCOREBOARDS
from codegen.sass.isa.opcodes import PREDICATES
from codegen.sass.isa.operands import Accesses
from codegen.sass.verify.needs import needed
from codegen.sass.verify.program import Finding, Places, Program, resource_name

_RESULT, _CYCLES, _OPERAND = range(3)
"""Why a register is not ready: its result has an unknown latency, or a fixed one, or its old value is still read."""
_WORD_BITS, _RESOURCE_BITS = 32, 16
"""Widths in a key that packs a word and a resource."""


@dataclass(frozen=True, eq=False)
class _Pending:
    """Registers that are not ready when a branch is taken; arrays are [pending]."""

    kind: NDArray[np.int64]
    word: Places
    """The word that writes or reads the register."""
    resource: NDArray[np.int64]
    scoreboards: NDArray[np.int64]
    """A bit for each scoreboard; a wait for any of them is enough."""


@dataclass(frozen=True, eq=False)
class _States:
    """Places that pending registers have been followed to; arrays are [states]."""

    pending: NDArray[np.int64]
    """An index into a `_Pending`."""
    elapsed: NDArray[np.int64]
    """Cycles since its word issued; 0 where they do not matter."""
    start: Places
    """The word at which the code continues."""

    def __len__(self) -> int:
        return len(self.pending)

    def at(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> _States:
        return _States(self.pending[chosen], self.elapsed[chosen], self.start[chosen])

    def keys(self, length: int, longest: int) -> NDArray[np.int64]:
        """A number that is unique to each state, in code of `length` words with latencies of up to `longest` cycles."""
        return (self.pending * longest + self.elapsed) * length + self.start


def check_branches(code: Program) -> Iterator[Finding]:
    """Uses, after a branch, of a register that is not ready when the branch is taken."""
    if not len(code.branches):
        return
    branches, targets = code.branches.T
    longest = code.architecture.latencies.longest
    ends = np.append(np.flatnonzero(code.ends), len(code) - 1)
    pending, waiting = _at_branches(code, branches, targets)
    backwards = targets <= branches
    seen = np.zeros(0, dtype=np.int64)
    while len(waiting):
        end = ends[np.searchsorted(ends, waiting.start)]
        kind, resource = pending.kind[waiting.pending], pending.resource[waiting.pending]
        use = code.used.writes.following(resource, waiting.start)
        results = np.flatnonzero(kind != _OPERAND)
        reads = code.used.reads.following(resource[results], waiting.start[results])
        use[results] = np.minimum(use[results], reads)
        cleared = _first_wait(code, pending.scoreboards[waiting.pending], waiting.start)
        last = np.minimum(np.minimum(end, use - 1), cleared - 1)
        used = np.flatnonzero((use <= end) & (use < cleared))
        if len(used):
            wrong = used[_wrong(code, pending, waiting.at(used), use[used])]
            yield from _findings(code, pending, waiting.at(wrong), use[wrong])
            last[wrong] = -1
        state, branch = _pairs(branches, waiting.start, last + 1)
        passed = code.cycles[branches[branch]] + code.stalls[branches[branch]] - code.cycles[waiting.start[state]]
        passed[kind[state] != _CYCLES] = 0
        after = _States(waiting.pending[state], waiting.elapsed[state] + passed, targets[branch])
        soon = np.flatnonzero(after.elapsed < longest)
        after, branch = after.at(soon), branch[soon]
        keys, first = np.unique(after.keys(len(code), longest), return_index=True)
        new = np.ones(len(first), dtype=np.bool_)
        # Only a backward branch can lead to a state that was seen before.
        again = np.flatnonzero(backwards[branch[first]])
        if len(again):
            new[again] &= ~np.isin(keys[again], seen, assume_unique=True)
            seen = np.concatenate([seen, keys[again[new[again]]]])
        waiting = after.at(first[new])


def _pairs(sorted_places: Places, first: Places, end: Places) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of a range, first <= place < end, and a place within it, as indices of both."""
    low = np.searchsorted(sorted_places, first)
    count = np.maximum(np.searchsorted(sorted_places, end) - low, 0)
    owner = np.repeat(np.arange(len(first)), count)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(count) - count - low, count)


def _first_wait(code: Program, scoreboards: NDArray[np.int64], start: Places) -> Places:
    """For each set of scoreboards, the first word from `start` on that waits for one of them."""
    found = np.full(len(start), len(code))
    for board, places in enumerate(code.waits):
        chosen = np.flatnonzero(scoreboards >> board & 1)
        if len(chosen) and len(places):
            following = np.append(places, len(code))[np.searchsorted(places, start[chosen])]
            found[chosen] = np.minimum(found[chosen], following)
    return found


def _at_branches(code: Program, branches: Places, targets: Places) -> tuple[_Pending, _States]:
    """Pending registers at each branch, and their states once the branch has been taken."""
    writes, reads = code.used.writes, code.used.reads
    variable = code.asynchronous[writes.word]
    late = code.asynchronous[reads.word] & (reads.resource < PREDICATES)
    found = [
        _unfinished(code, branches, writes.where(variable)),
        _recent(code, branches, writes.where(~variable)),
        _unread(code, branches, reads.where(late)),
    ]
    kind, word, resource, scoreboards, elapsed, branch = (np.concatenate(each) for each in zip(*found, strict=True))
    keys = (kind << _WORD_BITS | word) << _RESOURCE_BITS | resource
    _, one, which = np.unique(keys << SCOREBOARDS | scoreboards, return_index=True, return_inverse=True)
    pending = _Pending(kind[one], word[one], resource[one], scoreboards[one])
    return pending, _States(which, elapsed, targets[branch])


_Found = tuple[NDArray[np.int64], ...]
"""The arrays of a `_Pending`, then cycles elapsed, then the index of the branch."""


def _before_branches(
    code: Program, branches: Places, accesses: Accesses, end: Places
) -> tuple[Places, NDArray[np.int64], NDArray[np.int64]]:
    """Accesses before a branch of their own segment, if the branch is before `end`: words, resources and branches."""
    before = np.flatnonzero(code.next_branch[accesses.word] < end)
    word, resource = accesses.word[before], accesses.resource[before]
    segment_ends = np.append(np.flatnonzero(code.ends), len(code) - 1)
    last = segment_ends[code.segment[word]]
    access, branch = _pairs(branches, word + 1, np.minimum(last + 1, end[before]))
    return word[access], resource[access], branch


def _unfinished(code: Program, branches: Places, writes: Accesses) -> _Found:
    """Results of unknown latency that may not have arrived."""
    word, resource, branch = _before_branches(code, branches, writes, code.done[writes.word])
    last = _is_last(code, word, resource, branches[branch])
    word, resource, branch = word[last], resource[last], branch[last]
    cover = code.covering[word]
    board = np.where(cover <= branches[branch], code.write_scoreboard[cover], SCOREBOARDS + 1)
    scoreboards = np.where(board < SCOREBOARDS, 1 << board, 0)
    return np.full(len(word), _RESULT), word, resource, scoreboards, np.zeros(len(word), np.int64), branch


def _recent(code: Program, branches: Places, writes: Accesses) -> _Found:
    """Results of fixed latency that may not have arrived."""
    issued = np.append(code.cycles, np.iinfo(np.int64).max)
    longest = code.architecture.latencies.longest
    writes = writes.where(issued[code.next_branch[writes.word]] < code.cycles[writes.word] + longest)
    after = np.append(code.cycles[branches] + code.stalls[branches], np.iinfo(np.int64).max)
    until = code.cycles[writes.word] + longest
    in_time = np.append(branches, len(code))[np.searchsorted(after, until)]
    word, resource, branch = _before_branches(code, branches, writes, in_time)
    last = _is_last(code, word, resource, branches[branch])
    word, resource, branch = word[last], resource[last], branch[last]
    elapsed = after[branch] - code.cycles[word]
    return np.full(len(word), _CYCLES), word, resource, np.zeros(len(word), np.int64), elapsed, branch


def _unread(code: Program, branches: Places, reads: Accesses) -> _Found:
    """Operands that may still be read. A unit reads in order, so a later word's scoreboard covers earlier reads."""
    word, resource, branch = _before_branches(code, branches, reads, code.released[reads.word])
    scoreboards = np.zeros(len(word), dtype=np.int64)
    for unit in np.unique(code.slots[word]).tolist():
        of_unit = np.flatnonzero(code.slots[word] == unit)
        alike = code.asynchronous & (code.slots == unit)
        for board in range(SCOREBOARDS):
            sets = np.flatnonzero(alike & ((code.read_scoreboard == board) | (code.write_scoreboard == board)))
            next_set = np.append(sets, len(code))[np.searchsorted(sets, word[of_unit])]
            scoreboards[of_unit] |= (next_set < branches[branch[of_unit]]).astype(np.int64) << board
    return np.full(len(word), _OPERAND), word, resource, scoreboards, np.zeros(len(word), np.int64), branch


def _is_last(code: Program, word: Places, resource: NDArray[np.int64], place: Places) -> NDArray[np.bool_]:
    """Whether a word's result may still be there at a place: every word that overwrites it first is guarded."""
    following: Places = code.certain_writes.following(resource, word + 1)
    return following >= place


def _wrong(code: Program, pending: _Pending, states: _States, use: Places) -> NDArray[np.bool_]:
    """[states]: whether the word `use` comes too early."""
    kind = pending.kind[states.pending]
    wrong = np.where(kind == _OPERAND, ~code.asynchronous[use], kind == _RESULT)
    cycles = np.flatnonzero(kind == _CYCLES)
    elapsed, least = _cycles_of(code, pending, states.at(cycles), use[cycles])
    wrong[cycles] = elapsed < least
    return wrong


def _cycles_of(
    code: Program, pending: _Pending, states: _States, use: Places
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cycles from the word that writes a register to its use, and the cycles that its result needs."""
    elapsed = states.elapsed + code.cycles[use] - code.cycles[states.start]
    writer, resource = pending.word[states.pending], pending.resource[states.pending]
    reads = code.used.reads.following(resource, use) == use
    by_reading = needed(code, writer, use, resource, writing=False)
    return elapsed, np.where(reads, by_reading, needed(code, writer, use, resource, writing=True))


def _findings(code: Program, pending: _Pending, states: _States, use: Places) -> Iterator[Finding]:
    elapsed, least = _cycles_of(code, pending, states, use)
    for i, place in enumerate(use.tolist()):
        which = int(states.pending[i])
        name, word = resource_name(int(pending.resource[which])), pending.word[which]
        yield Finding(
            place,
            (
                f"uses {name} before word {word}, from which a branch leads here, is waited for",
                f"uses {name} {elapsed[i]} cycles after word {word}, not {least[i]}",
                f"overwrites {name} before word {word}, which branches here, has read it",
            )[pending.kind[which]],
        )
