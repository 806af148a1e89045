"""Scoreboards: which words use which, and the words whose scoreboard the assembler changes.

| scoreboard | user |
|---|---|
| 0 | copies to shared memory: ptxas's asynchronous ones, and those that pass through registers, alone |
| 1 to 5 | loads of the weight code, in turn; four banks of the operand ring need four of them |
| 1 | the users of 0 in the skeleton, where copies pass through registers |
| one of 1 to 5 | early loads: free beside them, then the weight code has the other four |
| 5 | words before a move, where the load that it replaces has none; stores of early stores without one |

ptxas's own words keep theirs. The hazard checker refuses a wrong wait; a shared scoreboard only costs time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa import encoding
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.encoding import NO_SCOREBOARD, Words
from codegen.sass.isa.latencies import SETTLING_CYCLES
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton.register_copies import ORDER

WEIGHT_CODE: Final = (1, 2, 3, 4, 5)
"""For the loads of the weight code."""
MOVES: Final = 5
"""For words before a move."""
EARLY_STORES: Final = 5
"""For early stores that ptxas has given none."""
_COPIES, _INSTEAD = 0, 1
"""For copies that pass through registers, and for the other users of that scoreboard."""


def separate_early_loads(words: Words, last: int, architecture: Architecture) -> tuple[int, ...]:
    """Gives early loads of a group body a scoreboard of their own, in place; returns those left to the weight code.

    Early loads are loads from global memory whose results are used after the last chunk: values added to outputs.
    ptxas gives them any free scoreboard; the weight code uses all in turn, and would wait for global memory. The last
    chunk's multiply-adds come before word `last`.
    """
    used = operands(words, architecture)
    written, read = encoding.WRITE_SCOREBOARD.get(words), encoding.READ_SCOREBOARD.get(words)
    loads = used.named("LDG") & (written != NO_SCOREBOARD)
    loads[last:] = False
    results = used.writes.where(loads[used.writes.word])
    following = results.word + 1
    use = np.minimum(*(each.following(results.resource, following) for each in (used.reads, used.writes)))
    loads[results.word[use < last]] = False
    early = np.flatnonzero(loads)
    if not len(early):
        return WEIGHT_CODE
    beside = slice(int(early[0]), last)
    taken = set(np.where(loads, NO_SCOREBOARD, written)[beside].tolist()) | set(read[beside].tolist())
    waits = encoding.WAIT.get(words)
    awaited = int(np.bitwise_or.reduce(waits[beside]))
    free = [board for board in WEIGHT_CODE if board not in taken and not awaited >> board & 1]
    if not free:
        return WEIGHT_CODE
    own = free[-1]
    written[early] = own
    use = use[loads[results.word] & (use < len(words))]
    waits[use] |= 1 << own
    encoding.WRITE_SCOREBOARD.put(words, written)
    encoding.WAIT.put(words, waits)
    awaited_next = ((written == own) | (read == own)) & np.append(waits[1:] >> own & 1 == 1, False)
    stalls = encoding.STALL.get(words)
    encoding.STALL.put(words, np.where(awaited_next, np.maximum(stalls, SETTLING_CYCLES), stalls))
    return tuple(board for board in WEIGHT_CODE if board != own)


def restore_copies(words: Words, loads: NDArray[np.int64], waiting: NDArray[np.int64], order: int) -> None:
    """Gives the volatile `loads` of a group body another memory order, in place; the words `waiting` wait for them.

    One scoreboard counts them and nothing else, so that only the words that store their results wait for them.
    """
    if not len(loads):
        return
    chosen = words[loads]
    ORDER.put(chosen, order)
    words[loads] = chosen
    for field in (encoding.WRITE_SCOREBOARD, encoding.READ_SCOREBOARD):
        boards = field.get(words)
        field.put(words, np.where(boards == _COPIES, _INSTEAD, boards))
    sets = encoding.WRITE_SCOREBOARD.get(words)
    sets[loads] = _COPIES
    encoding.WRITE_SCOREBOARD.put(words, sets)
    waits = encoding.WAIT.get(words)
    waits |= (waits >> _COPIES & 1) << _INSTEAD
    # The first load waits for users of the scoreboard before the K group.
    waits[loads[0] + 1 :] &= ~(1 << _COPIES)
    waits[loads[0]] |= 1 << _COPIES
    waits[waiting] |= 1 << _COPIES
    encoding.WAIT.put(words, waits)
    setters = (sets[:-1] == _INSTEAD) | (encoding.READ_SCOREBOARD.get(words[:-1]) == _INSTEAD)
    near = np.flatnonzero(setters & (waits[1:] >> _INSTEAD & 1 == 1))
    chosen = words[near]
    encoding.STALL.put(chosen, np.maximum(encoding.STALL.get(chosen), SETTLING_CYCLES))
    words[near] = chosen
