"""How long words stall if other words come between them, or none: as long as results of a fixed latency need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import Words
from codegen.sass.isa.latencies import REGISTER_CYCLES, UNITS
from codegen.sass.verify.program import Places, Program

_UNIFORM_READY: Final = 12
"""In what ptxas makes stores and copies have a uniform result after 9; none of its loads was seen that soon."""
READY_CYCLES: Final = np.where(np.array(UNITS) == "uniform", _UNIFORM_READY, REGISTER_CYCLES[:, UNITS.index("memory")])
"""[unit that writes]: until a load may have its result in the address."""
_SHORT = 3
"""From so many cycles on another warp issues next."""


def passed_by(branches: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """[words]: of so many words those that branches [branches, 2], from and to a place, may pass."""
    passed = np.zeros(count, dtype=np.bool_)
    for source, target in branches.tolist():
        passed[max(0, min(source, target)) : max(0, source, target)] = True
    return passed


def settle(
    words: Words,
    least: NDArray[np.int64],
    most: NDArray[np.int64],
    passed: NDArray[np.bool_] | None = None,
    addresses: Iterable[tuple[int, Iterable[int]]] = (),
) -> None:
    """Stalls of words [words], in place, between `least` and `most` [words].

    Words `passed` by a branch keep their stalls, and count for no result's cycles. `addresses` are places and the
    registers that loads which come before them have in their addresses.
    """
    program = Program(words, np.zeros(0, dtype=np.int64))
    if passed is None:
        passed = np.zeros(len(words), dtype=np.bool_)
    first = np.where(passed, program.stalls, least)
    counted = np.where(passed, 0, first)
    needs = _needs(program, addresses)
    # Stalls only grow: what has its cycles already will have them.
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


def _needs(program: Program, addresses: Iterable[tuple[int, Iterable[int]]]) -> tuple[Places, Places, Places]:
    """[needs]: words, those before them whose results they use or overwrite, and after how many cycles."""
    writes = program.used.writes
    found: list[tuple[Places, Places, Places]] = []

    def add(places: Places, resources: Places, cycles: Callable[[Places, Places, Places], Places]) -> None:
        writer = writes.before(resources, places)
        fixed = (writer >= 0) & ~program.asynchronous[writer]
        places, resources, writer = places[fixed], resources[fixed], writer[fixed]
        found.append((places, writer, cycles(writer, places, resources)))

    for accesses, writing in ((program.used.reads, False), (writes, True)):
        add(accesses.word, accesses.resource, partial(program.needed, writing=writing))
    for place, registers in addresses:
        resources = np.array(list(registers), dtype=np.int64)
        add(np.full(len(resources), place), resources, lambda writer, *_: READY_CYCLES[program.units[writer]])
    places, writers, cycles = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.argsort(places, kind="stable")
    return places[order], writers[order], cycles[order]
