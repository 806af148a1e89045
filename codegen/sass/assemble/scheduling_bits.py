"""The scheduling bits of a word: what it waits for, what it sets, and when the next one issues."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import NO_SCOREBOARD

RESULT_CYCLES = 5
"""From the last multiply-add of a chunk to whatever follows."""
SETTLE_CYCLES = 2
"""From an instruction that sets a scoreboard to one that waits for it."""
MOST_STALL = 15


def control(
    stall: NDArray[np.int64], sets: NDArray[np.int64], waits: NDArray[np.int64], reuse: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[instructions]: the scheduling bits, as they lie in the upper half of a word."""
    fields = (
        (encoding.STALL, stall),
        (encoding.YIELD, stall < 3),
        (encoding.WRITE_SCOREBOARD, sets),
        (encoding.WAIT, waits),
    )
    high = np.full(len(stall), NO_SCOREBOARD << encoding.READ_SCOREBOARD.first - 64, dtype=np.int64)
    for field, value in (*fields, (encoding.REUSE, reuse)):
        high |= np.asarray(value, dtype=np.int64) << (field.first - 64)
    return high
