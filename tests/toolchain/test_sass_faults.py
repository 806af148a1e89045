"""Waits and cycles taken away from drawn programs are refused, or a walk through the words does without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import numpy as np
import pytest

from codegen.sass.cubin import CubinFile
from codegen.sass.isa.architectures import architecture_of
from codegen.sass.isa.encoding import (
    NO_SCOREBOARD,
    READ_SCOREBOARD,
    SCOREBOARDS,
    STALL,
    WAIT,
    WORD_BYTES,
    WRITE_SCOREBOARD,
    Field,
    Words,
)
from codegen.sass.verify import hazards
from codegen.sass.verify.program import Program
from tests.toolchain.hazard_walk import Walk
from tests.toolchain.machine_cubins import PLAIN, cubin_for
from tests.toolchain.test_nvdisasm import directly

DRAWN, WALKS, STEPS = 60, 3, 1500
PROGRAMS = (
    (directly, "several rows a thread, three stages"),
    (directly, "whole rows copied by fours"),
    (directly, "float16, several rows a thread, added up in float16"),
    (partial(cubin_for, arch="sm_90"), PLAIN),
    (partial(cubin_for, arch="sm_90"), "transposed"),
)


def faults(words: Words) -> Iterator[tuple[Field, int, int]]:
    """Everything that can be taken away: a field, a word, and what is left of the field."""
    waits, stalls = WAIT.get(words).tolist(), STALL.get(words).tolist()
    for place, (wait, stall) in enumerate(zip(waits, stalls, strict=True)):
        yield from ((WAIT, place, wait & ~(1 << board)) for board in range(SCOREBOARDS) if wait >> board & 1)
        yield from ((STALL, place, cycles) for cycles in {1, stall - 1} if stall > 1)
    for field in (READ_SCOREBOARD, WRITE_SCOREBOARD):
        yield from (
            (field, place, NO_SCOREBOARD) for place in np.flatnonzero(field.get(words) != NO_SCOREBOARD).tolist()
        )


@pytest.mark.parametrize(("made", "name"), PROGRAMS)
def test_what_is_taken_away_is_refused_unless_every_walk_does_without_it(
    made: Callable[[str], bytes], name: str
) -> None:
    check_faults(CubinFile.read(made(name)), Random(name), DRAWN)


def check_faults(cubin: CubinFile, drawn: Random, count: int) -> None:
    """Asserts it of a number of drawn faults, some of them harmless and some not."""
    targets, architecture = cubin.jump_tables // WORD_BYTES, architecture_of(cubin.capability)
    verdicts: Counter[tuple[bool, bool]] = Counter()
    for field, place, value in drawn.sample(list(faults(cubin.words)), count):
        words = cubin.words
        field.put(words[place : place + 1], value)
        refused = bool(hazards.check(words, cubin.registers, architecture, targets))
        code = Program(words, targets, architecture)
        found = [each for _ in range(WALKS) for each in Walk(code).run(drawn, STEPS)]
        assert refused or not found, (field, place, value, found[:3])
        verdicts[refused, bool(found)] += 1
    assert verdicts[True, True] > count / 10
    assert verdicts[False, False] > count / 10
