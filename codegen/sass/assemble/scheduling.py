"""Scheduling bits of words, and the stalls that results of a fixed latency need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa import encoding
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import NO_SCOREBOARD, Words
from codegen.sass.isa.latencies import RESULTS, SLOTS, Latencies
from codegen.sass.verify.needs import measured, reloads
from codegen.sass.verify.program import Places, Program, next_of

MOST_STALL = 15
_UNIFORM_READY: Final = 12
"""Cycles until a load uses a uniform result. ptxas's stores and copies use one after 9, none of its loads did."""
_SHORT = 3
"""Stalls from here on let another warp issue: the yield bit is 0."""


def result_cycles(latencies: Latencies) -> int:
    """Cycles from the last multiply-add of a chunk to any use of its result: a store takes longest."""
    return max(latencies.between(result, "memory") for result in ("fma", "half"))


def control(
    stall: NDArray[np.int64], sets: NDArray[np.int64], waits: NDArray[np.int64], reuse: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[instructions]: the scheduling bits, in place for the upper half of a word."""
    fields = (
        (encoding.STALL, stall),
        (encoding.YIELD, stall < _SHORT),
        (encoding.WRITE_SCOREBOARD, sets),
        (encoding.WAIT, waits),
    )
    high = np.full(len(stall), NO_SCOREBOARD << encoding.READ_SCOREBOARD.first - 64, dtype=np.int64)
    for field, value in (*fields, (encoding.REUSE, reuse)):
        high |= np.asarray(value, dtype=np.int64) << (field.first - 64)
    return high


def passed_by(branches: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """[count]: whether any of the branches [branches, 2], from and to a word, passes over a word."""
    passed = np.zeros(count, dtype=np.bool_)
    for source, target in branches.tolist():
        passed[max(0, min(source, target)) : max(0, source, target)] = True
    return passed


def settle(
    words: Words,
    least: NDArray[np.int64],
    most: NDArray[np.int64],
    architecture: Architecture,
    passed: NDArray[np.bool_] | None = None,
    addresses: Iterable[tuple[int, Iterable[int]]] = (),
) -> None:
    """Sets the stalls of words, in place, to what results need, between `least` and `most` [words].

    Words `passed` by a branch keep their stalls, and do not count as cycles for results. `addresses` are places, and
    the registers used as addresses by loads that will be inserted before them.
    """
    program = Program(words, np.zeros(0, dtype=np.int64), architecture)
    if passed is None:
        passed = np.zeros(len(words), dtype=np.bool_)
    first = np.where(passed, program.stalls, least)
    counted = np.where(passed, 0, first)
    needs = _needs(program, addresses)
    # Stalls only grow: a need that is met stays met.
    issued = np.append(0, np.cumsum(counted))
    place, before, needed = needs
    short = np.flatnonzero(issued[place] - issued[before] < needed)
    stalls, cycles, longest = first.tolist(), counted.tolist(), most.tolist()
    for place, before, needed in zip(*(each[short].tolist() for each in needs), strict=True):
        missing = needed - sum(cycles[before:place])
        each = place
        while missing > 0 and each > before:
            each -= 1
            more = 0 if passed[each] else min(missing, longest[each] - stalls[each])
            stalls[each], cycles[each], missing = stalls[each] + more, cycles[each] + more, missing - more
    changed = np.array(stalls) != program.stalls
    encoding.YIELD.put(words, np.where(changed, np.array(stalls) < _SHORT, encoding.YIELD.get(words)))
    encoding.STALL.put(words, stalls)


def keep_intervals(words: Words, architecture: Architecture) -> None:
    """Raises stalls, in place, until words that share a slow pipe are as far apart as the architecture has them."""
    opcodes, stalls = encoding.OPCODE.get(words), encoding.STALL.get(words)
    rows = {number: architecture.opcode(number) for number in np.flatnonzero(np.bincount(opcodes)).tolist()}

    def places(names: frozenset[str]) -> Places:
        chosen = [number for number, row in rows.items() if row is not None and row.name in names]
        return np.flatnonzero(np.isin(opcodes, chosen))

    for busy, waiting, least in architecture.intervals + architecture.kept_intervals:
        first, then = next_of(places(busy), places(waiting))
        issued = np.append(0, np.cumsum(stalls))
        missing = least - issued[then] + issued[first]
        near = np.flatnonzero(missing > 0)
        stalls[first[near]] += missing[near]
    encoding.STALL.put(words, stalls)


def _needs(program: Program, addresses: Iterable[tuple[int, Iterable[int]]]) -> tuple[Places, Places, Places]:
    """[needs]: words, the earlier words whose results or operands they use or overwrite, and the cycles between."""
    writes, of_results = program.used.writes, program.architecture.latencies.registers
    ready = np.where(np.array(RESULTS) == "uniform", _UNIFORM_READY, of_results[:, SLOTS.index("memory")])
    """[result]: cycles until a load may use the result in its address."""
    found: list[tuple[Places, Places, Places]] = []

    def add(places: Places, resources: Places, cycles: Callable[[Places, Places, Places], Places]) -> None:
        writer = writes.before(resources, places)
        fixed = (writer >= 0) & ~program.asynchronous[writer]
        places, resources, writer = places[fixed], resources[fixed], writer[fixed]
        found.append((places, writer, cycles(writer, places, resources)))

    for accesses, writing in ((program.used.reads, False), (writes, True)):
        add(accesses.word, accesses.resource, partial(measured, program, writing=writing))
    for place, registers in addresses:
        resources = np.array(list(registers), dtype=np.int64)
        add(np.full(len(resources), place), resources, lambda writer, *_: ready[program.results[writer]])
    readers, places, _, cycles = reloads(program)
    found.append((places, readers, cycles))
    places, writers, cycles = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.argsort(places, kind="stable")
    return places[order], writers[order], cycles[order]
