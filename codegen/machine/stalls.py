"""How long words stall if other words come between them, or none: as long as results of a fixed latency need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.machine import word
from codegen.machine.latencies import LONGEST, REGISTER_CYCLES, UNIFORM_CYCLES, UNITS
from codegen.machine.program import Program
from codegen.machine.word import Words

READY_CYCLES: Final = np.where(
    np.array(UNITS) == "uniform", UNIFORM_CYCLES[UNITS.index("memory")], REGISTER_CYCLES[:, UNITS.index("memory")]
)
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
    needs = _needs(program)
    writes = program.used.writes
    for place, registers in addresses:
        resources = np.array(list(registers), dtype=np.int64)
        writer = writes.before(resources, np.full(len(resources), place))
        writer = writer[writer >= 0]
        writer = writer[~program.variable[writer]]
        needs[place] += zip(writer.tolist(), READY_CYCLES[program.units[writer]].tolist(), strict=True)
    stalls = np.where(passed, program.stalls, least).tolist()
    cycles = np.where(passed, 0, stalls).tolist()
    for place, before, needed in ((place, *each) for place, found in enumerate(needs) for each in found):
        missing = needed - sum(cycles[before : min(place, before + LONGEST)])
        for each in range(place - 1, before - 1, -1):
            if missing > 0 and not passed[each]:
                more = min(missing, int(most[each]) - stalls[each])
                stalls[each], cycles[each], missing = stalls[each] + more, cycles[each] + more, missing - more
    changed = np.array(stalls) != program.stalls
    word.YIELD.put(words, np.where(changed, np.array(stalls) < _SHORT, word.YIELD.get(words)))
    word.STALL.put(words, stalls)


def _needs(program: Program) -> list[list[tuple[int, int]]]:
    """[words + 1]: for each word those before it whose results it uses or overwrites, and after how many cycles."""
    needs: list[list[tuple[int, int]]] = [[] for _ in range(len(program) + 1)]
    for accesses, writing in ((program.used.reads, False), (program.used.writes, True)):
        places, resources = accesses.word, accesses.resource
        writer = program.used.writes.before(resources, places)
        fixed = (writer >= 0) & ~program.variable[writer]
        places, resources, writer = places[fixed], resources[fixed], writer[fixed]
        needed = program.needed(writer, places, resources, writing=writing)
        for place, before, cycles in zip(places.tolist(), writer.tolist(), needed.tolist(), strict=True):
            needs[place].append((before, cycles))
    return needs
