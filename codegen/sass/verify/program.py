"""The words of a kernel and what a verifier asks of them: who wrote a register last, who waits, what runs next.

Places are numbers of words; the number of all words stands for nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa import latencies
from codegen.sass.isa.branches import branch_distances
from codegen.sass.isa.encoding import (
    ALWAYS,
    DESTINATION,
    NEGATED_PREDICATE,
    NO_SCOREBOARD,
    OPCODE,
    PREDICATE,
    READ_SCOREBOARD,
    SCOREBOARDS,
    SOURCE_A,
    SOURCE_B,
    SOURCE_C,
    STALL,
    WAIT,
    WORD_BYTES,
    WRITE_SCOREBOARD,
    Field,
    Words,
)
from codegen.sass.isa.opcodes import FORM_SHIFT, PREDICATES, UNIFORM_PREDICATES, UNIFORM_REGISTERS, Form
from codegen.sass.isa.operands import Accesses, operands

ARCHITECTURE: Final = 90
"""The one whose rules these are."""
Places = NDArray[np.int64]

_INPUT_PREDICATE = Field(87, 4)
_WIDE, _HIGH, _UPPER = (latencies.UNITS.index(name) for name in ("wide", "high", "upper"))
_DEPBAR_SCOREBOARD, _DEPBAR_LEFT = Field(44, 3), Field(38, 6)


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or not known to be right; `word` is the number of the instruction."""

    word: int
    reason: str


class Program:
    """A kernel's words [instructions, 2]; `jump_targets` are the words that BRX goes to."""

    def __init__(self, words: Words, jump_targets: Places) -> None:
        used = operands(words)
        self.words, self.used, self.jump_targets = words, used, jump_targets
        self.stalls = STALL.get(words)
        self.cycles = np.cumsum(self.stalls) - self.stalls
        self.guard = PREDICATE.get(words)
        self.guard_negated = NEGATED_PREDICATE.get(words)
        self.write_scoreboard, self.read_scoreboard = WRITE_SCOREBOARD.get(words), READ_SCOREBOARD.get(words)
        self.asynchronous = used.asynchronous
        self.units = used.per_word(latencies.unit_index)
        """[words]: the place of each word's unit in `latencies.UNITS`."""
        self.least_cycles = used.per_word(lambda opcode: opcode.least_cycles)
        self.quick_uniform = used.per_word(lambda opcode: opcode.quick_uniform) != 0
        self.queues = used.per_word(lambda opcode: opcode.queue)
        """Results of a queue come in order; 0 is none."""
        unguarded = (self.guard == ALWAYS) & (_INPUT_PREDICATE.get(words) == ALWAYS)
        self.ends = used.named("BRX") | used.named("EXIT", "BRA") & unguarded
        """Nothing runs on from here to the next word."""
        self.segment = np.cumsum(self.ends) - self.ends

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def waits(self) -> list[Places]:
        """Per scoreboard the words that wait until all who set it are done, in order."""
        masks = WAIT.get(self.words)
        depbar = self.used.named("DEPBAR") & (_DEPBAR_LEFT.get(self.words) == 0)
        also = _DEPBAR_SCOREBOARD.get(self.words)
        return [np.flatnonzero((masks >> s & 1 == 1) | depbar & (also == s)) for s in range(SCOREBOARDS)]

    def first_wait(self, after: Places, scoreboards: Places) -> Places:
        """For each place the first later one of its segment that waits for its scoreboard."""
        found = np.full(len(after), len(self))
        for scoreboard, places in enumerate(self.waits):
            chosen = np.flatnonzero(scoreboards == scoreboard)
            if not len(chosen) or not len(places):
                continue
            found[chosen] = np.append(places, len(self))[np.searchsorted(places, after[chosen], "right")]
        beyond = self.segment[np.minimum(found, len(self) - 1)] != self.segment[after]
        found[beyond] = len(self)
        return found

    @cached_property
    def covering(self) -> Places:
        """Per word the one whose scoreboard tells when its result is there: itself, or the next of its queue."""
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
        """Per word of unknown latency the first one at which its result is known to be there; of the others itself.

        Where that of a later one of its queue is known to be there, if no predicate guards it, so is its own.
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
        """Writes of an unknown latency; and of each the first word at which it, and all before it in its segment that
        write the same, are known to be there.
        """
        writes = self.used.writes.where(self.asynchronous[self.used.writes.word])
        others = (np.diff(each, prepend=-1) != 0 for each in (writes.resource, self.segment[writes.word]))
        first_of_next = np.cumsum(np.logical_or(*others)) * (len(self) + 1)
        return writes, np.maximum.accumulate(first_of_next + self.done[writes.word]) - first_of_next

    def unfinished(self, resources: Places, before: Places, places: Places) -> NDArray[np.bool_]:
        """Whether, at each place, a result may be missing that a word of its segment before `before` writes."""
        writes, until = self._under_way
        found = writes.index_before(resources, before)
        there = found >= 0
        there[there] = self.segment[writes.word[found[there]]] == self.segment[places[there]]
        there[there] = until[found[there]] > places[there]
        return there

    @cached_property
    def released(self) -> Places:
        """Per word that reads its operands late the first one at which it is known to have read them.

        Operands are read in the order of the words, so that one who is known to have read them speaks for those before.
        """
        result = np.full(len(self), len(self))
        places = np.flatnonzero(self.asynchronous)
        for boards in (self.read_scoreboard, self.write_scoreboard):
            result[places] = np.minimum(result[places], self.first_wait(places, boards[places]))
        for queue in np.unique(self.units[places]):
            of = places[self.units[places] == queue]
            result[of] = self._least_from(result, of)
        return result

    def _least_from(self, values: Places, places: Places) -> Places:
        """For each place the least value there and at the later ones of its segment."""
        segments = np.split(values[places], np.flatnonzero(np.diff(self.segment[places])) + 1)
        return np.concatenate([np.minimum.accumulate(each[::-1])[::-1] for each in segments])

    @cached_property
    def distances(self) -> Places:
        return branch_distances(self.words, ARCHITECTURE)

    @cached_property
    def branches(self) -> NDArray[np.int64]:
        """[branches, 2]: every branch and a place that it may go to, if that is a word of the code; in order."""
        direct = np.flatnonzero(self.used.named("BRA"))
        targets = direct + 1 + self.distances[direct] // WORD_BYTES
        inside = (targets >= 0) & (targets < len(self))
        indirect = np.flatnonzero(self.used.named("BRX"))
        several = np.stack([np.repeat(indirect, len(self.jump_targets)), np.tile(self.jump_targets, len(indirect))])
        return np.unique(np.concatenate([np.stack([direct[inside], targets[inside]]), several], axis=1), axis=1).T

    def opposite(self, first: Places, second: Places) -> NDArray[np.bool_]:
        """Whether two words never run both: their guards are one predicate and its opposite, as nobody wrote it."""
        guarded = (self.guard[first] != ALWAYS) & (self.guard[first] == self.guard[second])
        guarded &= self.guard_negated[first] != self.guard_negated[second]
        resources = PREDICATES + self.guard[first]
        unchanged = self.used.writes.before(resources, first) == self.used.writes.before(resources, second)
        both: NDArray[np.bool_] = guarded & unchanged
        return both

    def needed(self, writer: Places, places: Places, resources: Places, *, writing: bool) -> Places:
        """The cycles that a result of the words `writer` takes until `places` may use it."""
        by, to = self.units[places], self.units[writer]
        if writing:
            # Who reads it too has it before writing it: how long that takes is what its reading is held to.
            read = self.used.reads.hold(resources, places)
            return np.where(read, 1, latencies.OVERWRITE_CYCLES[to, by])
        guard = (self.guard[places] != ALWAYS) & (resources == PREDICATES + self.guard[places])
        of_predicate = np.where(guard, latencies.GUARD_CYCLES, latencies.PREDICATE_CYCLES[by])
        by, to = (
            np.where(self._late(places, resources), _UPPER, by),
            np.where(self._last(writer, resources), _UPPER, to),
        )
        of_register = np.maximum(latencies.REGISTER_CYCLES[to, by], self.least_cycles[writer])
        needed = np.where(resources >= PREDICATES, of_predicate, of_register)
        moved = self.quick_uniform[writer]
        of_uniform = np.where(moved, latencies.MOVED_UNIFORM_CYCLES, latencies.UNIFORM_CYCLES[by])
        return np.where(resources >= UNIFORM_REGISTERS, of_uniform, needed)

    def _late(self, places: Places, resources: Places) -> NDArray[np.bool_]:
        """Whether a register is nothing to the word at its place but the upper half of an addend of 64 bits."""
        words, wide = self.words[places], np.isin(self.units[places], (_WIDE, _HIGH))
        second = (OPCODE.get(words) >> FORM_SHIFT == Form.REGISTERS) & (SOURCE_B.get(words) == resources)
        others = second | (SOURCE_A.get(words) == resources)
        late: NDArray[np.bool_] = wide & (SOURCE_C.get(words) + 1 == resources) & ~others
        return late

    def _last(self, writer: Places, resources: Places) -> NDArray[np.bool_]:
        """Whether a register is the upper half of what an IMAD.WIDE writes."""
        last: NDArray[np.bool_] = (self.units[writer] == _WIDE) & (DESTINATION.get(self.words[writer]) != resources)
        return last

    @cached_property
    def certain_writes(self) -> Accesses:
        """Of words that no predicate guards."""
        writes = self.used.writes
        return writes.where(self.guard[writes.word] == ALWAYS)


def resource_name(resource: int) -> str:
    """As in R5, P0, UR4."""
    for start, letter in ((UNIFORM_PREDICATES, "UP"), (UNIFORM_REGISTERS, "UR"), (PREDICATES, "P"), (0, "R")):
        if resource >= start:
            return f"{letter}{resource - start}"
    raise ValueError(resource)
