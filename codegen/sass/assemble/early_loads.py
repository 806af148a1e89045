"""Loads from global memory that nothing needs before the last chunk has ended: what is added to outputs.

ptxas counts them with whatever scoreboard is free beside its own loads of inputs. A stream uses them all in turn, and
would wait for global memory amid the last chunks.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import NO_SCOREBOARD, Words
from codegen.sass.isa.operands import operands

OF_STREAMS: Final = (1, 2, 3, 4, 5)
"""Not 0: ptxas counts copies to shared memory with it. The ring has four banks, so four of these do."""


def set_apart(words: Words, last: int) -> tuple[int, ...]:
    """Gives such loads of a leaf a scoreboard of their own, in place; returns those that are left to the stream.

    The last chunk's multiply-adds come before word `last`.
    """
    used = operands(words)
    written, read = encoding.WRITE_SCOREBOARD.get(words), encoding.READ_SCOREBOARD.get(words)
    loads = used.named("LDG") & (written != NO_SCOREBOARD)
    loads[last:] = False
    results = used.writes.where(loads[used.writes.word])
    following = results.word + 1
    use = np.minimum(*(each.following(results.resource, following) for each in (used.reads, used.writes)))
    loads[results.word[use < last]] = False
    early = np.flatnonzero(loads)
    if not len(early):
        return OF_STREAMS
    beside = slice(int(early[0]), last)
    taken = set(np.where(loads, NO_SCOREBOARD, written)[beside].tolist()) | set(read[beside].tolist())
    waits = encoding.WAIT.get(words)
    awaited = int(np.bitwise_or.reduce(waits[beside]))
    free = [board for board in OF_STREAMS if board not in taken and not awaited >> board & 1]
    if not free:
        return OF_STREAMS
    own = free[-1]
    written[early] = own
    use = use[loads[results.word] & (use < len(words))]
    waits[use] |= 1 << own
    encoding.WRITE_SCOREBOARD.put(words, written)
    encoding.WAIT.put(words, waits)
    return tuple(board for board in OF_STREAMS if board != own)
