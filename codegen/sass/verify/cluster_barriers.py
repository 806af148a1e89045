"""The barrier of a cluster, as ptxas writes it: what one block stored, another may load.

MEMBAR, ERRBAR, CGAERRBAR   everybody sees what was stored before
UCGABAR_ARV, UCGABAR_WAIT   the barrier
CCTL.IVALL                  what follows loads nothing older
LD ...                      of other blocks' shared memory
UCGABAR_ARV, UCGABAR_WAIT, CCTL.IVALL: a block's memory stays until all have loaded from it
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.encoding import ALWAYS, OPCODE
from codegen.sass.isa.opcodes import CCTL, CGAERRBAR, ERRBAR, MEMBAR, UCGABAR_ARRIVE, UCGABAR_WAIT
from codegen.sass.verify.program import Finding, Places, Program

_FENCE: Final = ((MEMBAR, 6), (ERRBAR, 0), (CGAERRBAR, 8))
"""The words before the one that arrives, and their stalls: nothing else was ever seen in 398 such barriers."""


def barrier_findings(code: Program) -> Iterator[Finding]:
    """All that is wrong with the barriers of clusters, and with the loads of other blocks' memory between them."""
    opcodes = OPCODE.get(code.words)
    arrives, waits = np.flatnonzero(opcodes == UCGABAR_ARRIVE), np.flatnonzero(opcodes == UCGABAR_WAIT)
    loads = np.flatnonzero(code.used.named("LD"))
    fences = [np.flatnonzero(opcodes == opcode) for opcode, _ in _FENCE]
    parts = np.concatenate([arrives, waits, np.flatnonzero(opcodes == CCTL), *fences])
    if not len(parts) and not len(loads):
        return
    for place in np.sort(parts[(code.guard[parts] != ALWAYS) | (code.guard_negated[parts] != 0)]).tolist():
        yield Finding(place, "a part of a cluster's barrier that a predicate guards")
    fenced = _fenced(code, opcodes, arrives)
    if len(unfinished := np.setdiff1d(np.concatenate(fences), _behind(arrives[fenced], -1, -2, -3))):
        yield Finding(int(unfinished[0]), "a fence that no cluster's barrier follows")
    if not np.array_equal(np.flatnonzero(opcodes == CCTL), waits + 1):
        yield Finding(int(parts.min()), "a cluster's barrier behind which what was loaded before may be taken for new")
    if len(arrives) != len(waits) or (arrives > waits).any() or (waits[:-1] > arrives[1:]).any():
        yield Finding(int(parts.min()), "a cluster's barrier at which the blocks do not arrive and wait in turn")
        return
    if (code.segment[arrives] != code.segment[waits]).any():
        yield Finding(int(arrives[0]), "a cluster's barrier that is not waited for where it was arrived at")
    yield from _loads(code, loads, arrives, waits, fenced)
    stores = np.flatnonzero(code.used.named("STS", "LDGSTS"))
    stores = stores[stores > arrives.min(initial=len(code))]
    last = arrives[np.searchsorted(arrives, stores) - 1]
    for place in stores[code.segment[last] == code.segment[stores]].tolist():
        yield Finding(place, "stores to shared memory where other blocks load from it")


def _loads(
    code: Program, loads: Places, arrives: Places, waits: Places, fenced: NDArray[np.bool_]
) -> Iterator[Finding]:
    """Each load of another block's memory lies between two barriers, the first with a fence, and is done before the
    second.
    """
    before, after = np.searchsorted(waits, loads) - 1, np.searchsorted(arrives, loads)
    for load, first, second in zip(loads.tolist(), before.tolist(), after.tolist(), strict=True):
        here = code.segment[load]
        if first < 0 or code.segment[waits[first]] != here or not fenced[first]:
            yield Finding(load, "loads from another block with no barrier and fence before it")
        elif second == len(arrives) or code.segment[arrives[second]] != here or second != first + 1:
            yield Finding(load, "loads from another block with no barrier behind it")
        elif code.done[load] > arrives[second]:
            yield Finding(load, "loads from another block, and is not waited for before the next barrier")


def _fenced(code: Program, opcodes: Places, arrives: Places) -> NDArray[np.bool_]:
    """[arrives]: whether the words of a fence stand right before each."""
    fenced = np.ones(len(arrives), dtype=np.bool_)
    for distance, (opcode, stall) in zip((3, 2, 1), _FENCE, strict=True):
        place = np.maximum(arrives - distance, 0)
        fenced &= (opcodes[place] == opcode) & (code.stalls[place] == stall)
    return fenced


def _behind(places: Places, *distances: int) -> Places:
    return np.concatenate([places + distance for distance in distances])
