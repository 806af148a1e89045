"""Inputs that are multiplied by gates: both are loaded into the ring, and the product takes the input's place there.

A turn has the inputs of a statement of the template, or of several that are short, in one place of the ring and their
gates in the next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.assemble.input_transforms import Preparation
from codegen.sass.isa import encoding as word
from codegen.sass.isa.opcodes import FMUL

_GATING = re.compile(r"^mul\.rn\.f32 x(\d+),(%f\d+),g\1;$")
_GATES = re.compile(r"^ld\.shared(?:\.v([24]))?\.b32 \{?([g\d,]+)\}?,\[(%\w+)\+(\d+)\]; // farm\.gates (\d+) \d+$")
TURN_WORDS = 4
"""Inputs of a turn."""
PLACES = 2
"""Of the ring that a turn takes."""
_CYCLES = 4
"""From a multiplication by a gate to the first product of its input."""
_MULTIPLY = FMUL | word.ALWAYS << 12
_MULTIPLY_ORDINARY = 1 << 86 - 64
"""The product as it is: other values double it, or halve it."""


@dataclass(frozen=True, eq=False)
class Gates:
    """Which input of the loop is multiplied by which gate; inputs have their numbers in the template."""

    sources: tuple[str, ...]
    """[inputs]: the register that each is loaded into."""
    of_slot: NDArray[np.int64]
    """[slots]: the input of each."""
    statement: NDArray[np.int64]
    """[inputs]: the statement that each is in."""
    word: NDArray[np.int64]
    """[inputs]: its number in the statement."""
    statement_words: int
    """1, 2 or 4: room that a turn keeps for each."""
    load: NDArray[np.int64]
    """[inputs]: the load of its gate."""
    element: NDArray[np.int64]
    """[inputs]: which word of that."""
    pointers: tuple[str, ...]
    """[loads of gates]: what each goes through."""
    offsets: NDArray[np.int64]
    """[loads of gates]: bytes from there."""
    load_words: NDArray[np.int64]

    @staticmethod
    def of(turn: list[str], input_lines: list[int], gate_lines: list[int], of_slot: NDArray[np.int64]) -> Gates:
        """Of the lines of a loop. Raises MachineCodeError for what the assembler does not do."""
        inputs = [_GATING.match(turn[line]) for line in input_lines]
        loads = [_GATES.match(turn[line]) for line in gate_lines]
        found = [each for each in inputs if each], [each for each in loads if each]
        if len(found[0]) != len(inputs) or len(found[1]) != len(loads):
            raise MachineCodeError("gates of packed inputs")
        # A statement begins where inputs follow a line that is none of theirs.
        begins = np.diff(input_lines, prepend=-2) != 1
        statement = np.cumsum(begins) - 1
        number = np.arange(len(inputs)) - np.flatnonzero(begins)[statement]
        most = int(number.max()) + 1
        if most > TURN_WORDS:
            raise MachineCodeError(f"a statement of {most} inputs with gates")
        first = np.array([int(each[5]) for each in found[1]], dtype=np.int64)
        of_input = np.searchsorted(first, np.arange(len(inputs)), side="right") - 1
        return Gates(
            sources=tuple(each[2] for each in found[0]),
            of_slot=of_slot,
            statement=statement,
            word=number,
            statement_words=next(room for room in (1, 2, 4) if room >= most),
            load=of_input,
            element=np.arange(len(inputs)) - first[of_input],
            pointers=tuple(each[3] for each in found[1]),
            offsets=np.array([int(each[4]) for each in found[1]], dtype=np.int64),
            load_words=np.array([int(each[1] or 1) for each in found[1]], dtype=np.int64),
        )

    def source_of(self, name: str) -> str:
        """The register that an input `x0`, `x1`, ... was loaded into."""
        return self.sources[int(name.removeprefix("x"))]


def multiplied(before: NDArray[np.int64], register: NDArray[np.int64], gate: NDArray[np.int64]) -> Preparation:
    """Inputs in these registers times the gates in those, before these products."""
    low = _MULTIPLY | register << 16 | register << 24 | gate << 32
    return Preparation(before, register, low, np.full(len(low), _MULTIPLY_ORDINARY), _CYCLES)
