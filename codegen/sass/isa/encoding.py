"""The fields of the 128-bit instruction word of sm_75 to sm_121, read and written for whole streams at once.

A stream is an array [instructions, 2] of uint64, the lower half of each word first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]
"""[instructions, 2], lower half first."""

WORD_BYTES = 16
ZERO_REGISTER = 255
"""RZ: reads as zero, and ignores writes."""
ALWAYS = 7
"""PT, the predicate that is always true."""
NO_SCOREBOARD = 7
SCOREBOARDS = 6


@dataclass(frozen=True)
class Field:
    """Consecutive bits of a word, at most 64, within one half of it."""

    first: int
    bits: int

    def get(self, words: Words) -> NDArray[np.int64]:
        """The field of each word [instructions], unsigned."""
        found = words[..., self._half] >> self._shift
        found &= self._mask
        return found.view(np.int64)

    def put(self, words: Words, values: ArrayLike) -> None:
        """Writes one value or [instructions] to the field of each word. Raises ValueError if one does not fit."""
        numbers = np.asarray(values).astype(np.uint64)
        if (numbers > self._mask).any():
            raise ValueError(f"{int(numbers.max())} does not fit a field of {self.bits} bits")
        half = words[..., self._half]
        half &= self._others
        half |= numbers << self._shift

    @cached_property
    def _half(self) -> int:
        return self.first // 64

    @cached_property
    def _shift(self) -> np.uint64:
        return np.uint64(self.first % 64)

    @cached_property
    def _mask(self) -> np.uint64:
        return np.uint64((1 << self.bits) - 1)

    @cached_property
    def _others(self) -> np.uint64:
        """All bits of the half that are not the field's."""
        return ~(self._mask << self._shift)


OPCODE = Field(0, 12)
PREDICATE = Field(12, 3)
NEGATED_PREDICATE = Field(15, 1)
DESTINATION = Field(16, 8)
SOURCE_A = Field(24, 8)
SOURCE_B = Field(32, 8)
"""A register; in a store, the data."""
IMMEDIATE = Field(32, 32)
SOURCE_C = Field(64, 8)
OFFSET = Field(40, 24)
"""Bytes that a load or store adds to its address, in two's complement."""
SCALE = Field(78, 2)
"""Factor of the register in an address of shared memory up to sm_89: 1, 4, 8 or 16, as in [R2.X4]."""
SIZE = Field(73, 3)
"""Index into `ACCESS_SIZES`, in a load or store."""
STALL = Field(105, 4)
"""Cycles until the next instruction of the warp issues."""
YIELD = Field(109, 1)
WRITE_SCOREBOARD = Field(110, 3)
"""The scoreboard that is released when the result has arrived."""
READ_SCOREBOARD = Field(113, 3)
"""The scoreboard that is released when the operands have been read."""
WAIT = Field(116, 6)
"""A bit for each scoreboard that must be released before the instruction issues."""
REUSE = Field(122, 4)
"""A bit for each operand a, b, c that stays in the cache of its port for the next instruction."""


@dataclass(frozen=True)
class AccessSize:
    """The data that a load or store moves."""

    element: str
    """NumPy's name of what each register holds."""
    registers: int

    @property
    def bytes(self) -> int:
        return int(self.element[1:]) * self.registers


ACCESS_SIZES: Final = (
    AccessSize("u1", 1),
    AccessSize("i1", 1),
    AccessSize("u2", 1),
    AccessSize("i2", 1),
    AccessSize("u4", 1),
    AccessSize("u4", 2),
    AccessSize("u4", 4),
)
"""By the field SIZE, whose last value, 7, is no size."""
REGISTERS_OF_SIZE: Final = np.array([*(size.registers for size in ACCESS_SIZES), 1])
"""By the field SIZE."""
_WHOLE_REGISTERS: Final = {size.registers: number for number, size in enumerate(ACCESS_SIZES) if size.element == "u4"}
SIZE_OF_REGISTERS: Final = np.array([_WHOLE_REGISTERS.get(count, 0) for count in range(5)])
"""By the number of 32-bit registers: the field SIZE."""


def words_of(text: bytes) -> Words:
    """The words of a code section. Raises ValueError if its length is not a multiple of WORD_BYTES."""
    if len(text) % WORD_BYTES:
        raise ValueError(f"{len(text)} bytes of code are not a whole number of {WORD_BYTES}-byte words")
    return np.frombuffer(text, dtype="<u8").astype(np.uint64).reshape(-1, 2)


def text_of(words: Words) -> bytes:
    """The bytes of a code section with these words."""
    return words.astype("<u8").tobytes()
