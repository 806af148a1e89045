"""Copies to shared memory that pass through registers: loaded before a chunk's multiply-adds, stored after them.

ptxas would move these loads behind the multiply-adds. In marker PTX they are volatile, which keeps them in place; the
assembler makes them ordinary loads again (`scoreboards.restore_copies`).
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import Field, Words
from codegen.sass.isa.opcodes import LDG, are_of_kind
from codegen.sass.isa.operands import operands

ORDER = Field(78, 3)
"""Memory order of a load."""
WEAK, VOLATILE = 0, 5
_LOAD = re.compile(r"\bld\.global\.(?:nc\.)?")


def held_in_place(line: str) -> str:
    """A line of a template with its loads from global memory volatile: ptxas leaves them in place."""
    return _LOAD.sub("ld.volatile.global.", line)


def loads_of(words: Words, opcodes: NDArray[np.int64], within: slice) -> NDArray[np.int64]:
    """The volatile loads from global memory."""
    found: NDArray[np.int64] = within.start + np.flatnonzero(
        are_of_kind(opcodes[within], LDG) & (ORDER.get(words[within]) == VOLATILE)
    )
    return found


def check_held(words: Words, loads: NDArray[np.int64], until: NDArray[np.int64], architecture: Architecture) -> None:
    """Raises MachineCodeError if a result of the `loads` is read before the next of the words `until`.

    ptxas does so to move it to local memory where registers are short. All warps would wait for global memory before
    the multiply-adds.
    """
    if not len(loads) or not len(until):
        return
    used = operands(words, architecture)
    writer = used.writes.before(used.reads.resource, used.reads.word)
    ends = np.append(until, len(words))[np.searchsorted(until, writer)]
    if (np.isin(writer, loads) & (used.reads.word < ends)).any():
        raise MachineCodeError("ptxas uses the input of a copy before the multiply-adds")
