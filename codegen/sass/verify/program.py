"""A kernel's words, decoded for the hazard checker: results, waits and branches.

A place is the number of a word; the count of all words means "nowhere". A segment is a run of words that only
falls through from one to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.branches import branch_distances
from codegen.sass.isa.encoding import (
    ALWAYS,
    NEGATED_PREDICATE,
    NO_SCOREBOARD,
    PREDICATE,
    READ_SCOREBOARD,
    SCOREBOARDS,
    STALL,
    WAIT,
    WORD_BYTES,
    WRITE_SCOREBOARD,
    Field,
    Words,
)
from codegen.sass.isa.latencies import RESULTS, SLOTS, result_index, slot_index
from codegen.sass.isa.opcodes import (
    MEMORY_UNITS,
    PREDICATES,
    UNIFORM_BRANCH,
    UNIFORM_PREDICATES,
    UNIFORM_REGISTERS,
    WHOLE_64,
)
from codegen.sass.isa.operands import Accesses, operands

Places = NDArray[np.int64]

_INPUT_PREDICATE = Field(87, 4)
_DEPBAR_SCOREBOARD, _DEPBAR_LEFT = Field(44, 3), Field(38, 6)


@dataclass(frozen=True)
class Finding:
    """A hazard, or code that is not known to be free of one."""

    word: int
    """The number of the instruction."""
    reason: str


class Program:
    """A kernel's words [instructions, 2]; `jump_targets` are the words that BRX may go to."""

    def __init__(self, words: Words, jump_targets: Places, architecture: Architecture) -> None:
        used = operands(words, architecture)
        self.architecture = architecture
        self.words, self.used, self.jump_targets = words, used, jump_targets
        self.stalls = STALL.get(words)
        self.cycles = np.cumsum(self.stalls) - self.stalls
        self.guard = PREDICATE.get(words)
        self.guard_negated = NEGATED_PREDICATE.get(words)
        self.write_scoreboard, self.read_scoreboard = WRITE_SCOREBOARD.get(words), READ_SCOREBOARD.get(words)
        self.asynchronous = used.asynchronous
        pairs = used.named("MOV") & (WHOLE_64.get(words) == 1)  # MOV.64 in its other forms
        self.slots = np.where(pairs, SLOTS.index("pair"), used.per_word(slot_index))
        """[words]: the place in `latencies.SLOTS` of each word's operands."""
        self.results = np.where(pairs, RESULTS.index("pair"), used.per_word(result_index))
        """[words]: the place in `latencies.RESULTS` of each word's result."""
        self.least_cycles = used.per_word(lambda opcode: opcode.least_cycles)
        self.quick_uniform = used.per_word(lambda opcode: opcode.quick_uniform) != 0
        self.queues = used.per_word(lambda opcode: opcode.queue)
        """Results of one queue arrive in order; 0: no queue."""
        unguarded = (self.guard == ALWAYS) & (_INPUT_PREDICATE.get(words) == ALWAYS)
        unguarded &= UNIFORM_BRANCH.get(words) == 0
        self.ends = used.named("BRX") | used.named("EXIT", "BRA") & unguarded
        """Words after which the next word never runs."""
        self.segment = np.cumsum(self.ends) - self.ends

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def waits(self) -> list[Places]:
        """For each scoreboard, the words that wait until all its setters are done, in order."""
        masks = WAIT.get(self.words)
        depbars = np.flatnonzero(self.used.named("DEPBAR"))
        depbars = depbars[_DEPBAR_LEFT.get(self.words[depbars]) == 0]
        masks[depbars] |= 1 << _DEPBAR_SCOREBOARD.get(self.words[depbars])
        waiting = np.flatnonzero(masks)
        return [waiting[masks[waiting] >> s & 1 == 1] for s in range(SCOREBOARDS)]

    def first_wait(self, after: Places, scoreboards: Places) -> Places:
        """For each place, the first later word of its segment that waits for its scoreboard."""
        found = np.full(len(after), len(self))
        for scoreboard, places in enumerate(self.waits):
            chosen = np.flatnonzero(scoreboards == scoreboard)
            if not len(chosen) or not len(places):
                continue
            found[chosen] = self._next_of(places, after[chosen])
        return found

    def _next_of(self, places: Places, after: Places) -> Places:
        """For each place `after`, the first of these later places, if it is in the same segment."""
        found = np.append(places, len(self))[np.searchsorted(places, after, "right")]
        beyond = self.segment[np.minimum(found, len(self) - 1)] != self.segment[after]
        return np.where(beyond, len(self), found)

    @cached_property
    def covering(self) -> Places:
        """For each word, the one whose scoreboard tells that its result arrived: itself or a later one of its queue."""
        result = np.arange(len(self))
        for queue in range(1, int(self.queues.max(initial=0)) + 1):
            places = np.flatnonzero(self.queues == queue)
            own = self.write_scoreboard[places] != NO_SCOREBOARD
            following = np.where(own, np.arange(len(places)), len(places))
            following = np.minimum.accumulate(following[::-1])[::-1]
            known = following < len(places)
            covers = places[following[known]]
            same = self.segment[covers] == self.segment[places[known]]
            result[places[known][same]] = covers[same]
        return result

    @cached_property
    def done(self) -> Places:
        """For each word, the first place at which its result has certainly arrived; itself if its latency is fixed.

        Results of one queue arrive in order, so the arrival of a later one, if unguarded, tells of this one too.
        """
        result = np.arange(len(self))
        places = np.flatnonzero(self.asynchronous)
        covers = self.covering[places]
        result[places] = self.first_wait(covers, self.write_scoreboard[covers])
        certain = np.where(self.guard == ALWAYS, result, len(self))
        for queue in range(1, int(self.queues.max(initial=0)) + 1):
            places = np.flatnonzero(self.queues == queue)
            result[places] = np.minimum(result[places], self._least_from(certain, places))
        return result

    @cached_property
    def _under_way(self) -> tuple[Accesses, Places]:
        """Writes of unknown latency, and for each the first place at which it and all earlier writes of its resource
        in its segment have certainly arrived.
        """
        writes = self.used.writes.where(self.asynchronous[self.used.writes.word])
        others = (np.diff(each, prepend=-1) != 0 for each in (writes.resource, self.segment[writes.word]))
        first_of_next = np.cumsum(np.logical_or(*others)) * (len(self) + 1)
        return writes, np.maximum.accumulate(first_of_next + self.done[writes.word]) - first_of_next

    def unfinished(self, resources: Places, before: Places, places: Places) -> NDArray[np.bool_]:
        """[places]: whether a result that its segment writes to the resource before `before` may not have arrived."""
        writes, until = self._under_way
        found = writes.index_before(resources, before)
        there = found >= 0
        there[there] = self.segment[writes.word[found[there]]] == self.segment[places[there]]
        there[there] = until[found[there]] > places[there]
        return there

    @cached_property
    def released(self) -> Places:
        """For each asynchronous word, the first place at which it has certainly read its operands.

        A unit reads operands in the order of the words, so a later word that has read them tells of earlier ones too.
        """
        result = np.full(len(self), len(self))
        places = np.flatnonzero(self.asynchronous)
        for boards in (self.read_scoreboard, self.write_scoreboard):
            result[places] = np.minimum(result[places], self.first_wait(places, boards[places]))
        if self.architecture.barriers_drain:
            places = np.flatnonzero(self.used.where(*MEMORY_UNITS))
            barriers = np.flatnonzero(self.used.named("BAR") & (self.guard == ALWAYS))
            result[places] = np.minimum(result[places], self._next_of(barriers, places))
        places = np.flatnonzero(self.asynchronous)
        for queue in np.flatnonzero(np.bincount(self.slots[places])).tolist():
            of = places[self.slots[places] == queue]
            result[of] = self._least_from(result, of)
        return result

    def _least_from(self, values: Places, places: Places) -> Places:
        """For each place, the least value at it and at later places of its segment."""
        segments = np.split(values[places], np.flatnonzero(np.diff(self.segment[places])) + 1)
        return np.concatenate([np.minimum.accumulate(each[::-1])[::-1] for each in segments])

    @cached_property
    def distances(self) -> tuple[Places, Places]:
        """The direct branches, and the bytes from the word behind each to its target."""
        direct = np.flatnonzero(self.used.named("BRA"))
        return direct, branch_distances(self.words[direct], self.architecture.branch_pieces)

    @cached_property
    def next_branch(self) -> Places:
        """For each word, the first branch behind it, or the code's length."""
        branches = np.append(np.unique(self.branches[0]), len(self))
        following = np.searchsorted(branches, np.arange(len(self)), "right")
        found: Places = branches[following]
        return found

    @cached_property
    def branches(self) -> NDArray[np.int64]:
        """[branches, 2]: each branch and a word that it may go to, sorted; targets outside the code are left out."""
        direct, distances = self.distances
        targets = direct + 1 + distances // WORD_BYTES
        inside = (targets >= 0) & (targets < len(self))
        indirect = np.flatnonzero(self.used.named("BRX"))
        several = np.stack([np.repeat(indirect, len(self.jump_targets)), np.tile(self.jump_targets, len(indirect))])
        return np.unique(np.concatenate([np.stack([direct[inside], targets[inside]]), several], axis=1), axis=1).T

    def opposite(self, first: Places, second: Places) -> NDArray[np.bool_]:
        """Whether two words never both run: one predicate guards both, negated once, and does not change between."""
        guarded = (self.guard[first] != ALWAYS) & (self.guard[first] == self.guard[second])
        guarded &= self.guard_negated[first] != self.guard_negated[second]
        resources = PREDICATES + self.guard[first]
        unchanged = self.used.writes.before(resources, first) == self.used.writes.before(resources, second)
        both: NDArray[np.bool_] = guarded & unchanged
        return both

    @cached_property
    def certain_writes(self) -> Accesses:
        """Writes of unguarded words."""
        writes = self.used.writes
        return writes.where(self.guard[writes.word] == ALWAYS)


def next_of(places: Places, others: Places) -> tuple[Places, Places]:
    """The places that one of the others follows, and the first of these for each; all are sorted."""
    found = np.searchsorted(others, places, "right")
    there = found < len(others)
    return places[there], others[found[there]]


def resource_name(resource: int) -> str:
    """A resource as assembly names it: R5, P0, UR4, UP1."""
    for start, letter in ((UNIFORM_PREDICATES, "UP"), (UNIFORM_REGISTERS, "UR"), (PREDICATES, "P"), (0, "R")):
        if resource >= start:
            return f"{letter}{resource - start}"
    raise ValueError(resource)
