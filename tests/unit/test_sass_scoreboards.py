"""Scoreboards that the assembler gives to words of ptxas."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.sass.assemble.scoreboards import WEIGHT_CODE, separate_early_loads
from codegen.sass.isa.architectures.sm_90 import SM_90
from codegen.sass.isa.encoding import (
    ALWAYS,
    DESTINATION,
    NO_SCOREBOARD,
    OPCODE,
    PREDICATE,
    READ_SCOREBOARD,
    SOURCE_A,
    SOURCE_B,
    STALL,
    WAIT,
    WRITE_SCOREBOARD,
)
from codegen.sass.isa.opcodes import FADD, LDG


@pytest.mark.parametrize("last", [1, 2])
def test_a_load_that_sets_the_scoreboard_of_early_loads_leaves_two_cycles_to_a_word_that_waits_for_it(
    last: int,
) -> None:
    """The word behind two loads uses the first one. The second one, early or not, has its scoreboard."""
    words = np.zeros((4, 2), dtype=np.uint64)
    OPCODE.put(words, [LDG, LDG, FADD, FADD])
    PREDICATE.put(words, ALWAYS)
    DESTINATION.put(words, [10, 11, 12, 13])
    SOURCE_A.put(words, [2, 2, 10, 11])
    SOURCE_B.put(words, [4, 4, 255, 255])
    STALL.put(words, [4, 1, 5, 5])
    WRITE_SCOREBOARD.put(words, [0, WEIGHT_CODE[-1], NO_SCOREBOARD, NO_SCOREBOARD])
    READ_SCOREBOARD.put(words, NO_SCOREBOARD)
    separate_early_loads(words, last, SM_90)
    board = WRITE_SCOREBOARD.get(words)[1]
    assert WRITE_SCOREBOARD.get(words)[0] == board
    assert WAIT.get(words)[2] == 1 << board
    assert STALL.get(words).tolist() == [4, 2, 5, 5]
