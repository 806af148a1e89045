"""Copies to shared memory that pass through registers: loaded before a chunk's multiply-adds, stored after them.

ptxas would load later what nobody needs before: in a skeleton these loads are volatile, which keeps them where they
are, and in the cubin what they were. One scoreboard counts them and nothing else, so that only what stores them waits
for them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.assemble.scheduling_bits import SETTLE_CYCLES
from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import Field, Words
from codegen.sass.isa.opcodes import LDG
from codegen.sass.isa.operands import operands

_ORDER = Field(78, 3)
_READ_ONLY, _VOLATILE = 2, 5
_SCOREBOARD, _INSTEAD = 0, 1
"""That of the copies, and that of whatever else has this one."""


def held_in_place(line: str) -> str:
    """A line of a template whose load from global memory ptxas leaves where it is."""
    return line.replace("ld.global.nc.", "ld.volatile.global.")


def loads_of(words: Words, opcodes: NDArray[np.int64], within: slice) -> NDArray[np.int64]:
    """The loads that were held in place."""
    found: NDArray[np.int64] = within.start + np.flatnonzero(
        (opcodes[within] == LDG) & (_ORDER.get(words[within]) == _VOLATILE)
    )
    return found


def check_held(words: Words, loads: NDArray[np.int64], until: NDArray[np.int64]) -> None:
    """Nothing reads what the `loads` bring before the next of the words `until`, which waits for them.

    Where registers are short ptxas moves it to local memory: all warps would wait for it before the multiply-adds.
    Raises MachineCodeError if it does.
    """
    if not len(loads) or not len(until):
        return
    used = operands(words)
    writer = used.writes.before(used.reads.resource, used.reads.word)
    ends = np.append(until, len(words))[np.searchsorted(until, writer)]
    if (np.isin(writer, loads) & (used.reads.word < ends)).any():
        raise MachineCodeError("ptxas uses the input of a copy before the multiply-adds")


def put_loads(words: Words, loads: NDArray[np.int64], waiting: NDArray[np.int64]) -> None:
    """Makes the `loads` among the words of a K group what they were, in place; those `waiting` wait for them."""
    if not len(loads):
        return
    chosen = words[loads]
    _ORDER.put(chosen, _READ_ONLY)
    words[loads] = chosen
    for field in (encoding.WRITE_SCOREBOARD, encoding.READ_SCOREBOARD):
        boards = field.get(words)
        field.put(words, np.where(boards == _SCOREBOARD, _INSTEAD, boards))
    sets = encoding.WRITE_SCOREBOARD.get(words)
    sets[loads] = _SCOREBOARD
    encoding.WRITE_SCOREBOARD.put(words, sets)
    waits = encoding.WAIT.get(words)
    waits |= (waits >> _SCOREBOARD & 1) << _INSTEAD
    # What the code before the K group has set is waited for before the first load.
    waits[loads[0] + 1 :] &= ~(1 << _SCOREBOARD)
    waits[loads[0]] |= 1 << _SCOREBOARD
    waits[waiting] |= 1 << _SCOREBOARD
    encoding.WAIT.put(words, waits)
    setters = (sets[:-1] == _INSTEAD) | (encoding.READ_SCOREBOARD.get(words[:-1]) == _INSTEAD)
    near = np.flatnonzero(setters & (waits[1:] >> _INSTEAD & 1 == 1))
    chosen = words[near]
    encoding.STALL.put(chosen, np.maximum(encoding.STALL.get(chosen), SETTLE_CYCLES))
    words[near] = chosen
