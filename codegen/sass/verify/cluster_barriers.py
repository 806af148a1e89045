"""Cluster barriers: a block loads another block's shared memory only between two of them, as ptxas writes them.

MEMBAR, ERRBAR, CGAERRBAR    fence: all blocks see what was stored before
UCGABAR_ARV, UCGABAR_WAIT    barrier
CCTL.IVALL                   no later load returns older data
LD ...                       loads of other blocks' shared memory
UCGABAR_ARV, UCGABAR_WAIT, CCTL.IVALL    a block's memory stays until all blocks have loaded from it
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
"""The words right before UCGABAR_ARV, and their stalls: all 398 barriers seen have exactly these."""


def check_cluster_barriers(code: Program) -> Iterator[Finding]:
    """Errors in cluster barriers, and in the loads of other blocks' shared memory between them."""
    opcodes = OPCODE.get(code.words)
    arrives, waits = np.flatnonzero(opcodes == UCGABAR_ARRIVE), np.flatnonzero(opcodes == UCGABAR_WAIT)
    loads = np.flatnonzero(code.used.named("LD"))
    fences = [np.flatnonzero(opcodes == opcode) for opcode, _ in _FENCE]
    parts = np.concatenate([arrives, waits, np.flatnonzero(opcodes == CCTL), *fences])
    if not len(parts) and not len(loads):
        return
    for place in np.sort(parts[(code.guard[parts] != ALWAYS) | (code.guard_negated[parts] != 0)]).tolist():
        yield Finding(place, "a part of a cluster barrier is guarded by a predicate")
    fenced = _fenced(code, opcodes, arrives)
    if len(unfinished := np.setdiff1d(np.concatenate(fences), _behind(arrives[fenced], -1, -2, -3))):
        yield Finding(int(unfinished[0]), "a fence without a cluster barrier behind it")
    if not np.array_equal(np.flatnonzero(opcodes == CCTL), waits + 1):
        yield Finding(int(parts.min()), "a cluster barrier without CCTL behind it: later loads may return older data")
    if len(arrives) != len(waits) or (arrives > waits).any() or (waits[:-1] > arrives[1:]).any():
        yield Finding(int(parts.min()), "a cluster barrier at which blocks do not arrive and wait in turn")
        return
    if (code.segment[arrives] != code.segment[waits]).any():
        yield Finding(int(arrives[0]), "a cluster barrier that arrives and waits in different parts of the code")
    yield from _loads(code, loads, arrives, waits, fenced)
    stores = np.flatnonzero(code.used.named("STS", "LDGSTS"))
    stores = stores[stores > arrives.min(initial=len(code))]
    last = arrives[np.searchsorted(arrives, stores) - 1]
    for place in stores[code.segment[last] == code.segment[stores]].tolist():
        yield Finding(place, "stores to shared memory where other blocks load from it")


def _loads(
    code: Program, loads: Places, arrives: Places, waits: Places, fenced: NDArray[np.bool_]
) -> Iterator[Finding]:
    """Loads of another block's memory that are not between two barriers, the first with a fence, or end too late."""
    before, after = np.searchsorted(waits, loads) - 1, np.searchsorted(arrives, loads)
    for load, first, second in zip(loads.tolist(), before.tolist(), after.tolist(), strict=True):
        here = code.segment[load]
        if first < 0 or code.segment[waits[first]] != here or not fenced[first]:
            yield Finding(load, "loads from another block with no barrier and fence before it")
        elif second == len(arrives) or code.segment[arrives[second]] != here or second != first + 1:
            yield Finding(load, "loads from another block with no barrier behind it")
        elif code.done[load] > arrives[second]:
            yield Finding(load, "loads from another block and does not finish before the next barrier")


def _fenced(code: Program, opcodes: Places, arrives: Places) -> NDArray[np.bool_]:
    """[arrives]: whether the words of a fence stand right before it."""
    fenced = np.ones(len(arrives), dtype=np.bool_)
    for distance, (opcode, stall) in zip((3, 2, 1), _FENCE, strict=True):
        place = np.maximum(arrives - distance, 0)
        fenced &= (opcodes[place] == opcode) & (code.stalls[place] == stall)
    return fenced


def _behind(places: Places, *distances: int) -> Places:
    return np.concatenate([places + distance for distance in distances])
