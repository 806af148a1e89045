"""The 128-bit instruction word of sm_75 to sm_121: its fields, read and written for whole streams at once.

A stream is an array [instructions, 2] of uint64, the lower half of each word first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]
"""[instructions, 2], lower half first."""

WORD_BYTES = 16
ZERO_REGISTER = 255
"""RZ: reads as zero, takes what is written to it."""
ALWAYS = 7
"""The predicate that is true, and the scoreboard that is none."""
NO_SCOREBOARD = 7
SCOREBOARDS = 6


@dataclass(frozen=True)
class Field:
    """Consecutive bits of a word, at most 64 and within one half of it."""

    first: int
    bits: int

    def get(self, words: Words) -> NDArray[np.int64]:
        """[instructions]: the field of each word, unsigned."""
        found = words[..., self._half] >> self._shift
        found &= self._mask
        return found.view(np.int64)

    def put(self, words: Words, values: ArrayLike) -> None:
        """Writes the field of each word; the values are one number or [instructions]."""
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
        """All bits of the half but the field's."""
        return ~(self._mask << self._shift)


OPCODE = Field(0, 12)
PREDICATE = Field(12, 3)
NEGATED_PREDICATE = Field(15, 1)
DESTINATION = Field(16, 8)
SOURCE_A = Field(24, 8)
SOURCE_B = Field(32, 8)
"""A register; of a store to shared or global memory its data."""
IMMEDIATE = Field(32, 32)
SOURCE_C = Field(64, 8)
OFFSET = Field(40, 24)
"""Bytes that a load or store of memory adds to its address register, two's complement."""
SIZE = Field(73, 3)
"""Of a load or store of memory: see `SIZE_BYTES`."""
STALL = Field(105, 4)
"""Cycles until the next instruction of the warp issues."""
YIELD = Field(109, 1)
WRITE_SCOREBOARD = Field(110, 3)
"""Released when the result is there."""
READ_SCOREBOARD = Field(113, 3)
"""Released when the operands have been read."""
WAIT = Field(116, 6)
"""One bit for each scoreboard that must be released before the instruction issues."""
REUSE = Field(122, 4)
"""Operands a, b, c that the next instruction finds in the cache of its operand's port."""

_ONE_PIECE = 80
"""An architecture whose branches store their distance in one piece."""
SIZE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 8, 6: 16}

FFMA_IMMEDIATE = 0x823
"""FFMA d, a, immediate, c."""
FFMA_IMMEDIATE_ADDEND = 0x423
"""FFMA d, a, b, immediate."""
FMUL = 0x220
FMUL_IMMEDIATE = 0x820
FADD_IMMEDIATE = 0x421
HFMA2_IMMEDIATE = 0x831
HFMA2_MMA_IMMEDIATE = 0x835
"""The same on the tensor cores' unit."""
LDS = 0x984
STS = 0x988
STS_PLAIN = 0x388
"""STS without a uniform register in its address."""
STG = 0x986
LDG = 0x981
LDGSTS = 0xFAE
BAR = 0xB1D
NOP = 0x918
BRA = 0x947
BRX = 0x949
BSSY = 0x945
BSYNC = 0x941
EXIT = 0x94D
UCGABAR_ARRIVE = 0x9C7
UCGABAR_WAIT = 0xDC7


def words_of(text: bytes) -> Words:
    """The words of a section of code. Raises ValueError if it does not consist of whole words."""
    if len(text) % WORD_BYTES:
        raise ValueError(f"{len(text)} bytes of code are not a whole number of {WORD_BYTES}-byte words")
    return np.frombuffer(text, dtype="<u8").astype(np.uint64).reshape(-1, 2)


def text_of(words: Words) -> bytes:
    """The bytes of a section of code with these words."""
    return words.astype("<u8").tobytes()


def branch_distances(words: Words, capability: int) -> NDArray[np.int64]:
    """[instructions]: how many bytes beyond the next word each BRA goes, backwards if negative.

    `capability` is the architecture's number, 90 for sm_90: from there on the distance is stored in two pieces.
    """
    low, high = words[..., 0], words[..., 1]
    upper = (low >> np.uint64(34)) | (high << np.uint64(30))
    upper = (upper & np.uint64((1 << 48) - 1)).astype(np.int64)
    if capability < 90:
        return _signed(upper, 48) * 4
    lower = ((low >> np.uint64(16)) & np.uint64(0xFF)).astype(np.int64)
    return ((_signed(upper, 48) << 8) | lower) * 4


def put_branch_distances(words: Words, distances: ArrayLike, capability: int) -> None:
    """Writes how many bytes beyond the next word each BRA goes: multiples of 4."""
    quads = np.asarray(distances, dtype=np.int64) // 4
    if capability >= 90:
        Field(16, 8).put(words, quads & 0xFF)
        quads = quads >> 8
    pieces = (quads & ((1 << 48) - 1)).astype(np.uint64)
    Field(34, 30).put(words, pieces & np.uint64((1 << 30) - 1))
    Field(64, 18).put(words, pieces >> np.uint64(30))


def jump_distances(words: Words, capability: int) -> NDArray[np.int64]:
    """[instructions]: the same of BRA and BSSY, whose distance is in one piece on every architecture."""
    one_piece = OPCODE.get(words) == BSSY
    return np.where(one_piece, branch_distances(words, _ONE_PIECE), branch_distances(words, capability))


def put_jump_distances(words: Words, distances: NDArray[np.int64], capability: int) -> None:
    """Writes how far each BRA and BSSY goes."""
    one_piece = OPCODE.get(words) == BSSY
    for which, form in ((one_piece, _ONE_PIECE), (~one_piece, capability)):
        chosen = words[which]
        put_branch_distances(chosen, distances[which], form)
        words[which] = chosen


def _signed(values: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    return values - ((values >> (bits - 1)) << bits)
