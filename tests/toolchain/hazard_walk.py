"""A second opinion on hazards, by an algorithm of its own: words one at a time, in an order in which they may run.

A walk draws which way conditional branches go, and knows what is in flight when a word issues, as the scoreboards of
the hardware do. From the checker it takes the decoded words and the cycles that results need.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from random import Random

import numpy as np

from codegen.sass.isa.encoding import ALWAYS
from codegen.sass.isa.latencies import RELOAD_CYCLES
from codegen.sass.isa.opcodes import PREDICATES
from codegen.sass.isa.operands import Accesses
from codegen.sass.verify.needs import needed
from codegen.sass.verify.program import Program


@dataclass(frozen=True, eq=False)
class _Issued:
    """A word that has issued."""

    number: int
    place: int
    cycle: int
    guard: tuple[int, int]
    """The predicate, and how often it has been written."""
    negated: int

    def excludes(self, other: _Issued) -> bool:
        """Whether only one of the two runs."""
        return self.guard[0] != ALWAYS and self.guard == other.guard and self.negated != other.negated


class Walk:
    """One way through a kernel."""

    def __init__(self, code: Program) -> None:
        self.code = code
        self.found: list[str] = []
        self._reads, self._writes = _by_word(code.used.reads, len(code)), _by_word(code.used.writes, len(code))
        self._waits = [set(places.tolist()) for places in code.waits]
        self._results: dict[int, list[_Issued]] = defaultdict(list)
        self._in_flight: list[_Issued] = []
        self._unread: list[_Issued] = []
        self._read_at: dict[int, int] = {}
        self._writes_so_far: dict[int, int] = defaultdict(int)
        self._distances: list[tuple[int, int, int, bool, int]] = []

    def run(self, turns: Random, steps: int) -> list[str]:
        """The hazards among the next words, at most `steps`."""
        code, targets = self.code, defaultdict(list)
        for branch, target in code.branches.tolist():
            targets[branch].append(target)
        place = cycle = 0
        for number in range(steps):
            guard = int(code.guard[place])
            version = self._writes_so_far[PREDICATES + guard]
            word = _Issued(number, place, cycle, (guard, version), int(code.guard_negated[place]))
            self._wait(place)
            self._check(word)
            self._issue(word)
            cycle += int(code.stalls[place])
            ways = targets[place] + ([] if code.ends[place] else [place + 1])
            if not ways:
                break
            place = turns.choice(ways)
        return self.found + self._too_near()

    def _wait(self, place: int) -> None:
        """Removes the words in flight that a word's wait mask completes, and those that finish in order before them."""
        code = self.code
        for board in (board for board, places in enumerate(self._waits) if place in places):
            arrived = [each for each in self._in_flight if code.write_scoreboard[each.place] == board]
            certain = {code.queues[each.place]: each.number for each in arrived if each.guard[0] == ALWAYS}
            self._in_flight = [
                each
                for each in self._in_flight
                if each not in arrived
                and (not code.queues[each.place] or each.number > certain.get(code.queues[each.place], -1))
            ]
            boards = code.write_scoreboard, code.read_scoreboard
            read = [each for each in self._unread if any(of[each.place] == board for of in boards)]
            last = {code.slots[each.place]: each.number for each in read}
            self._unread = [each for each in self._unread if each.number > last.get(code.slots[each.place], -1)]

    def _check(self, word: _Issued) -> None:
        code, place = self.code, word.place
        for writing, resources in ((False, self._reads[place]), (True, self._writes[place])):
            for resource in resources:
                for before in (each for each in self._results[resource] if not each.excludes(word)):
                    in_order = writing and 0 < code.queues[place] == code.queues[before.place]
                    if before in self._in_flight and not in_order:
                        self.found.append(f"word {place} uses {resource} before word {before.place} delivers it")
                    if not code.asynchronous[before.place]:
                        cycles = word.cycle - before.cycle
                        self._distances.append((before.place, place, resource, writing, cycles))
        for resource in (each for each in self._writes[place] if each < PREDICATES):
            if code.asynchronous[place]:
                if word.cycle - self._read_at.get(resource, -RELOAD_CYCLES) < RELOAD_CYCLES:
                    self.found.append(f"word {place} loads {resource} while it is read")
            elif any(resource in self._reads[each.place] for each in self._unread):
                self.found.append(f"word {place} overwrites {resource} before it is read")

    def _issue(self, word: _Issued) -> None:
        place = word.place
        for resource in self._writes[place]:
            self._writes_so_far[resource] += 1
            if word.guard[0] == ALWAYS:
                self._results[resource] = []
            self._results[resource].append(word)
        if self.code.asynchronous[place]:
            self._in_flight.append(word)
            self._unread.append(word)
        else:
            self._read_at.update(dict.fromkeys(self._reads[place], word.cycle))

    def _too_near(self) -> list[str]:
        """Uses of a result of fixed latency before it is there."""
        found = []
        for writing in (False, True):
            chosen = sorted({each for each in self._distances if each[3] == writing})
            writer, place, resource, _, passed = np.array(chosen, dtype=np.int64).reshape(-1, 5).T
            least = needed(self.code, writer, place, resource, writing=writing)
            found += [f"word {place[i]} uses {resource[i]} too soon" for i in np.flatnonzero(passed < least)]
        return found


def _by_word(accesses: Accesses, words: int) -> list[list[int]]:
    resources: list[list[int]] = [[] for _ in range(words)]
    for place, resource in zip(accesses.word.tolist(), accesses.resource.tolist(), strict=True):
        resources[place].append(resource)
    return resources
